/* What the files of libnvidia-ml.so.1 share: the interface's types and codes, and how a call finds its device.
 *
 * Place in the flow: state file ─view─▶ **libnvidia-ml.so.1** ─▶ nvidia-ml-py, gpustat, nvitop, device plugins.
 * Invariant: a call answers from one whole reading and makes no system call while the state file stays the same.
 * The numbers, field orders and names are those of NVIDIA's published interface; the code is gpuyard's own.
 */
#ifndef GPUYARD_NVML_H
#define GPUYARD_NVML_H

#include "view.h"

#define API __attribute__((visibility("default")))

typedef int nvmlReturn_t;
typedef struct nvml_handle *nvmlDevice_t;

enum {
    NVML_SUCCESS = 0,
    NVML_ERROR_UNINITIALIZED = 1,
    NVML_ERROR_INVALID_ARGUMENT = 2,
    NVML_ERROR_NOT_SUPPORTED = 3,
    NVML_ERROR_NO_PERMISSION = 4,
    NVML_ERROR_ALREADY_INITIALIZED = 5,
    NVML_ERROR_NOT_FOUND = 6,
    NVML_ERROR_INSUFFICIENT_SIZE = 7,
    NVML_ERROR_DRIVER_NOT_LOADED = 9,
    NVML_ERROR_TIMEOUT = 10,
    NVML_ERROR_GPU_IS_LOST = 15,
    NVML_ERROR_LIB_RM_VERSION_MISMATCH = 18,
    NVML_ERROR_MEMORY = 20,
    NVML_ERROR_ARGUMENT_VERSION_MISMATCH = 25,
    NVML_ERROR_UNKNOWN = 999
};

/* A structure with a version starts with the word size | version << 24. */
#define VERSION_OF(type, number) ((unsigned)(sizeof(type) | (number) << 24))

enum handle_kind { DEVICE_HANDLE = 1, MIG_HANDLE, GPU_INSTANCE_HANDLE, COMPUTE_INSTANCE_HANDLE };

/* A handle names its device by UUID, so it keeps meaning the same device when the machine changes around it. */
struct nvml_handle {
    enum handle_kind kind;
    char uuid[GY_UUID];
};

/* What a call knows about its device: copies out of one reading. */
struct seen {
    enum handle_kind kind;
    unsigned index;    /* Position among the devices this process sees. */
    uint32_t position; /* Position among all devices of the machine. */
    uint64_t taken_at_ms;
    struct gy_device device;
    struct gy_mig mig;         /* For the handle of an instance. */
    struct gy_product product; /* Without its MIG profiles. */
};

extern struct gy_view nvml_view;

/* GY_OK and a reading, or the error every call gives then. */
nvmlReturn_t nvml_begin(struct gy_reading *reading);
int nvml_still(const struct gy_reading *reading);

/* See the device of a handle, also when it is lost, and the same where a lost one is an error. `out` must not be NULL. */
nvmlReturn_t nvml_identify(nvmlDevice_t handle, const void *out, struct seen *seen);
nvmlReturn_t nvml_look(nvmlDevice_t handle, const void *out, struct seen *seen);
/* The same for calls that make sense for a whole GPU only. */
nvmlReturn_t nvml_look_gpu(nvmlDevice_t handle, const void *out, struct seen *seen);

/* Within a reading: find what a handle means. */
nvmlReturn_t nvml_find(const struct gy_reading *reading, nvmlDevice_t handle, struct seen *seen);

/* The one handle of that kind for that UUID, or NULL when no more are to be had. */
nvmlDevice_t nvml_handle_for(enum handle_kind kind, const char *uuid);
int nvml_is_handle(const void *handle, enum handle_kind kind);

/* Copy a text out, or say that there is too little room. */
nvmlReturn_t nvml_copy(char *out, unsigned length, const char *text);

/* How lists are asked for: a count of zero asks how long the list is. `room` is what the caller has. */
nvmlReturn_t nvml_list_status(unsigned room, unsigned found);

#endif
