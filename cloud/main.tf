# What `python -m cleanrl_utils.benchmark --engine aws` needs: a registry for the container, two queues of AWS Batch (CPU
# and GPU) on spot or on-demand instances that come and go with the jobs, a job definition, and a file system for `runs/`
# so that an experiment whose machine is taken away goes on from its checkpoint. See cloud/README.md.

terraform {
  required_version = ">= 1.5"
  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = "~> 5.80"
    }
  }
}

provider "aws" {
  region = var.region
  default_tags {
    tags = { project = var.name }
  }
}

# Network: the default one of the account

data "aws_vpc" "default" {
  default = true
}

data "aws_subnets" "default" {
  filter {
    name   = "vpc-id"
    values = [data.aws_vpc.default.id]
  }
}

resource "aws_security_group" "jobs" {
  name        = "${var.name}-jobs"
  description = "Machines of AWS Batch: nothing comes in, anything goes out"
  vpc_id      = data.aws_vpc.default.id

  egress {
    from_port   = 0
    to_port     = 0
    protocol    = "-1"
    cidr_blocks = ["0.0.0.0/0"]
  }
}

resource "aws_security_group" "runs" {
  name        = "${var.name}-runs"
  description = "The file system: NFS from the jobs"
  vpc_id      = data.aws_vpc.default.id

  ingress {
    from_port       = 2049
    to_port         = 2049
    protocol        = "tcp"
    security_groups = [aws_security_group.jobs.id]
  }
}

# The container and the runs

resource "aws_ecr_repository" "cleanrl" {
  name         = var.name
  force_delete = true
}

resource "aws_efs_file_system" "runs" {
  encrypted = true
  tags      = { Name = "${var.name}-runs" }
}

resource "aws_efs_mount_target" "runs" {
  for_each        = toset(data.aws_subnets.default.ids)
  file_system_id  = aws_efs_file_system.runs.id
  subnet_id       = each.value
  security_groups = [aws_security_group.runs.id]
}

# Who may do what

data "aws_iam_policy_document" "assume" {
  for_each = toset(["batch", "ec2", "ecs-tasks", "spotfleet"])

  statement {
    actions = ["sts:AssumeRole"]
    principals {
      type        = "Service"
      identifiers = ["${each.value}.amazonaws.com"]
    }
  }
}

resource "aws_iam_role" "batch" {
  name               = "${var.name}-batch"
  assume_role_policy = data.aws_iam_policy_document.assume["batch"].json
}

resource "aws_iam_role_policy_attachment" "batch" {
  role       = aws_iam_role.batch.name
  policy_arn = "arn:aws:iam::aws:policy/service-role/AWSBatchServiceRole"
}

resource "aws_iam_role" "machine" {
  name               = "${var.name}-machine"
  assume_role_policy = data.aws_iam_policy_document.assume["ec2"].json
}

resource "aws_iam_role_policy_attachment" "machine" {
  role       = aws_iam_role.machine.name
  policy_arn = "arn:aws:iam::aws:policy/service-role/AmazonEC2ContainerServiceforEC2Role"
}

resource "aws_iam_instance_profile" "machine" {
  name = "${var.name}-machine"
  role = aws_iam_role.machine.name
}

resource "aws_iam_role" "spot" {
  name               = "${var.name}-spot"
  assume_role_policy = data.aws_iam_policy_document.assume["spotfleet"].json
}

resource "aws_iam_role_policy_attachment" "spot" {
  role       = aws_iam_role.spot.name
  policy_arn = "arn:aws:iam::aws:policy/service-role/AmazonEC2SpotFleetTaggingRole"
}

resource "aws_iam_role" "execution" {
  name               = "${var.name}-execution"
  assume_role_policy = data.aws_iam_policy_document.assume["ecs-tasks"].json
}

resource "aws_iam_role_policy_attachment" "execution" {
  role       = aws_iam_role.execution.name
  policy_arn = "arn:aws:iam::aws:policy/service-role/AmazonECSTaskExecutionRolePolicy"
}

resource "aws_iam_role_policy" "read_secret" {
  count = var.wandb_secret_arn == null ? 0 : 1
  name  = "read-wandb-key"
  role  = aws_iam_role.execution.id
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Effect   = "Allow"
      Action   = ["secretsmanager:GetSecretValue"]
      Resource = [var.wandb_secret_arn]
    }]
  })
}

# Where jobs run: no job, no machine, no cost

resource "aws_batch_compute_environment" "cleanrl" {
  for_each                        = var.queues
  compute_environment_name_prefix = "${each.key}-"
  type                            = "MANAGED"
  service_role                    = aws_iam_role.batch.arn

  compute_resources {
    type                = var.spot ? "SPOT" : "EC2"
    allocation_strategy = var.spot ? "SPOT_PRICE_CAPACITY_OPTIMIZED" : "BEST_FIT_PROGRESSIVE"
    spot_iam_fleet_role = var.spot ? aws_iam_role.spot.arn : null
    instance_role       = aws_iam_instance_profile.machine.arn
    instance_type       = each.value.instance_types
    min_vcpus           = 0
    max_vcpus           = each.value.max_vcpus
    subnets             = data.aws_subnets.default.ids
    security_group_ids  = [aws_security_group.jobs.id]
  }

  lifecycle {
    create_before_destroy = true # a queue always needs one
  }
  depends_on = [aws_iam_role_policy_attachment.batch]
}

resource "aws_batch_job_queue" "cleanrl" {
  for_each = var.queues
  name     = each.key
  state    = "ENABLED"
  priority = 1

  compute_environment_order {
    order               = 1
    compute_environment = aws_batch_compute_environment.cleanrl[each.key].arn
  }
}

resource "aws_batch_job_definition" "cleanrl" {
  name                  = var.name
  type                  = "container"
  platform_capabilities = ["EC2"]

  # Command, resources and variables are those of each job: see cleanrl_utils/engines/aws.py
  container_properties = jsonencode({
    image            = "${aws_ecr_repository.cleanrl.repository_url}:latest"
    command          = ["python", "-m", "cleanrl_utils.supervisor", "--help"]
    executionRoleArn = aws_iam_role.execution.arn
    resourceRequirements = [
      { type = "VCPU", value = "1" },
      { type = "MEMORY", value = "4000" },
    ]
    secrets     = var.wandb_secret_arn == null ? [] : [{ name = "WANDB_API_KEY", valueFrom = var.wandb_secret_arn }]
    volumes     = [{ name = "runs", efsVolumeConfiguration = { fileSystemId = aws_efs_file_system.runs.id, transitEncryption = "ENABLED" } }]
    mountPoints = [{ sourceVolume = "runs", containerPath = "/cleanrl/runs", readOnly = false }]
  })

  depends_on = [aws_efs_mount_target.runs]
}
