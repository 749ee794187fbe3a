variable "region" {
  description = "Where on earth"
  type        = string
  default     = "us-east-1"
}

variable "name" {
  description = "Name of the job definition and the registry, and beginning of all other names"
  type        = string
  default     = "cleanrl"
}

variable "spot" {
  description = "Cheaper machines that may be taken away; the experiments then go on from their checkpoints elsewhere"
  type        = bool
  default     = true
}

variable "queues" {
  description = "The queues, each with its kinds of machines and the most CPUs it may use at once"
  type = map(object({
    instance_types = list(string)
    max_vcpus      = number
  }))
  default = {
    cleanrl     = { instance_types = ["c7i", "c6i", "m7i", "m6i"], max_vcpus = 64 }
    cleanrl-gpu = { instance_types = ["g5", "g4dn"], max_vcpus = 32 }
  }
}

variable "wandb_secret_arn" {
  description = "A secret of AWS Secrets Manager that holds the key of Weights & Biases; null: jobs get it from the submitter"
  type        = string
  default     = null
}
