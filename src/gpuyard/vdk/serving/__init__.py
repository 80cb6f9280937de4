"""The pool in the running manager: one GpuResourceManager, reached over REST and gRPC by whoever may."""
