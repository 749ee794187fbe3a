output "registry" {
  description = "Where to push the container"
  value       = aws_ecr_repository.cleanrl.repository_url
}

output "queues" {
  description = "For --aws-job-queue"
  value       = keys(aws_batch_job_queue.cleanrl)
}

output "runs" {
  description = "The file system with the results, to be mounted with NFS"
  value       = aws_efs_file_system.runs.dns_name
}
