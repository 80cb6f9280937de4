/* Who uses a device: running processes and what each of them uses. */
#include "nvml.h"

#include <string.h>

enum { COMPUTE = 'C', GRAPHICS = 'G', MPS = 'M' };

struct process_info {
    unsigned pid;
    unsigned long long used;
    unsigned gpu_instance, compute_instance;
};

struct process_info_v1 {
    unsigned pid;
    unsigned long long used;
};

struct process_detail {
    unsigned pid;
    unsigned long long used;
    unsigned gpu_instance, compute_instance;
    unsigned long long protected_memory;
};

/* A process that works through MPS is a compute process too. */
static int is_kind(const struct gy_process *process, unsigned kind) {
    return process->kind == kind || (kind == COMPUTE && process->kind == MPS);
}

/* Of a whole GPU all its processes; of an instance its own only. */
static int belongs(const struct gy_process *process, const struct seen *seen) {
    return seen->kind == DEVICE_HANDLE || process->mig == (int32_t)seen->mig.index;
}

/* What is written for each process that fits, into an array of any of the interface's shapes. */
typedef void writer(void *out, unsigned place, const struct gy_process *process, const struct seen *seen);

static void write_v1(void *out, unsigned place, const struct gy_process *process, const struct seen *seen) {
    (void)seen;
    ((struct process_info_v1 *)out)[place] = (struct process_info_v1){process->pid, process->memory_bytes};
}

static void write_v2(void *out, unsigned place, const struct gy_process *process, const struct seen *seen) {
    (void)seen;
    ((struct process_info *)out)[place] = (struct process_info){
        process->pid, process->memory_bytes, (unsigned)process->gpu_instance, (unsigned)process->compute_instance};
}

static void write_detail(void *out, unsigned place, const struct gy_process *process, const struct seen *seen) {
    (void)seen;
    ((struct process_detail *)out)[place] = (struct process_detail){
        process->pid, process->memory_bytes, (unsigned)process->gpu_instance, (unsigned)process->compute_instance, 0};
}

/* `kind` zero takes every process. `count` comes in as the room there is and goes out as what was found. */
static nvmlReturn_t list(nvmlDevice_t handle, unsigned kind, unsigned *count, void *out, writer *write) {
    struct gy_reading reading;
    struct seen seen;
    unsigned room = 0, found = 0;
    do {
        nvmlReturn_t status = nvml_begin(&reading);
        if (status != NVML_SUCCESS) return status;
        if (!count || !nvml_is_handle(handle, 0)) return NVML_ERROR_INVALID_ARGUMENT;
        room = *count;
        if (room && !out) return NVML_ERROR_INVALID_ARGUMENT;
        status = nvml_find(&reading, handle, &seen);
        if (status != NVML_SUCCESS && nvml_still(&reading)) return status;
        if (status != NVML_SUCCESS) continue;
        found = 0;
        struct gy_span span = gy_processes_of(&reading, seen.position);
        for (uint32_t i = span.first; i < span.end; i++) {
            const struct gy_process *process = &reading.processes[i];
            if ((kind && !is_kind(process, kind)) || !belongs(process, &seen)) continue;
            if (!gy_shows_process(&nvml_view, &reading, seen.position, i)) continue;
            if (found < room) write(out, found, process, &seen);
            found++;
        }
    } while (!nvml_still(&reading));
    if (seen.device.health == GY_HEALTH_OFF_THE_BUS) return NVML_ERROR_GPU_IS_LOST;
    *count = found;
    return nvml_list_status(room, found);
}

#define PROCESS_LIST(name, kind)                                                  \
    API nvmlReturn_t name(nvmlDevice_t handle, unsigned *count, void *out) {      \
        return list(handle, kind, count, out, write_v1);                          \
    }                                                                             \
    API nvmlReturn_t name##_v2(nvmlDevice_t handle, unsigned *count, void *out) { \
        return list(handle, kind, count, out, write_v2);                          \
    }                                                                             \
    API nvmlReturn_t name##_v3(nvmlDevice_t handle, unsigned *count, void *out) { \
        return list(handle, kind, count, out, write_v2);                          \
    }

PROCESS_LIST(nvmlDeviceGetComputeRunningProcesses, COMPUTE)
PROCESS_LIST(nvmlDeviceGetGraphicsRunningProcesses, GRAPHICS)
PROCESS_LIST(nvmlDeviceGetMPSComputeRunningProcesses, MPS)

struct process_details {
    unsigned version, mode, count;
    struct process_detail *processes;
};

API nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t handle, struct process_details *out) {
    const unsigned kinds[3] = {COMPUTE, GRAPHICS, MPS};
    struct seen seen;
    nvmlReturn_t status = nvml_look(handle, out, &seen);
    if (status != NVML_SUCCESS) return status;
    if (out->version != VERSION_OF(struct process_details, 1)) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    if (out->mode > 2) return NVML_ERROR_INVALID_ARGUMENT;
    return list(handle, kinds[out->mode], &out->count, out->processes, write_detail);
}

/* ------------------------------------------------------------------------------------------ utilisation by process */

struct sample {
    unsigned pid;
    unsigned long long at_us;
    unsigned sm, memory, encoder, decoder;
};

struct sample_v1 {
    unsigned long long at_us;
    unsigned pid, sm, memory, encoder, decoder, jpeg, ofa;
};

static void write_sample(void *out, unsigned place, const struct gy_process *process, const struct seen *seen) {
    ((struct sample *)out)[place] =
        (struct sample){process->pid, seen->taken_at_ms * 1000, process->sm_percent, process->memory_percent, 0, 0};
}

static void write_sample_v1(void *out, unsigned place, const struct gy_process *process, const struct seen *seen) {
    ((struct sample_v1 *)out)[place] = (struct sample_v1){
        seen->taken_at_ms * 1000, process->pid, process->sm_percent, process->memory_percent, 0, 0, 0, 0};
}

/* There is one sample of each process: the reading. Who has seen it, or asks for an idle device, finds none. */
static nvmlReturn_t samples(nvmlDevice_t handle, unsigned long long seen_us, unsigned *count, void *out,
                            writer *write) {
    struct seen seen;
    nvmlReturn_t status = nvml_look_gpu(handle, count, &seen);
    if (status != NVML_SUCCESS) return status;
    if (seen.device.mig_enabled) return NVML_ERROR_NOT_SUPPORTED;
    if (seen.taken_at_ms * 1000 <= seen_us) {
        *count = 0;
        return NVML_ERROR_NOT_FOUND;
    }
    unsigned room = out ? *count : 0;
    *count = room;
    status = list(handle, 0, count, out, write);
    return status == NVML_SUCCESS && *count == 0 ? NVML_ERROR_NOT_FOUND : status;
}

API nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t handle, struct sample *out, unsigned *count,
                                                 unsigned long long seen_us) {
    return samples(handle, seen_us, count, out, write_sample);
}

struct process_samples {
    unsigned version, count;
    unsigned long long seen_us;
    struct sample_v1 *samples;
};

API nvmlReturn_t nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t handle, struct process_samples *out) {
    struct seen seen;
    nvmlReturn_t status = nvml_look_gpu(handle, out, &seen);
    if (status != NVML_SUCCESS) return status;
    if (out->version != VERSION_OF(struct process_samples, 1)) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    return samples(handle, out->seen_us, &out->count, out->samples, write_sample_v1);
}
