/* The state of one machine's fake GPUs, as it lies in the file <state directory>/state.
 *
 * Place in the flow: reading ─publish.py─▶ **state** ─▶ libnvidia-ml.so.1, nvidia-smi.
 * Invariant: one writer, any number of readers; a reader never waits for the writer and never sees half a step.
 *
 * How that holds: the file has two bodies. Step number n is written into body n % 2 while readers use the other one,
 * and is made current by storing n into `published`. A reader notes `published`, copies what it needs from that body,
 * and takes the copy only if `published` is still the same; a body is written again only after its successor became
 * current. A writer that dies in the middle of a step leaves the last whole step current.
 *
 * A machine that outgrows its file gets a new one under the same name; the old one then says `replaced`.
 * layout.py mirrors every record; a test compiles this header and compares all offsets.
 */
#ifndef GPUYARD_STATE_H
#define GPUYARD_STATE_H

#include <stdint.h>

#define GY_MAGIC "GPUYARD\0"
#define GY_VERSION 2u
#define GY_NONE (-1) /* A signed field the device does not have. */

enum { GY_UUID = 96, GY_NAME = 96, GY_TEXT = 32, GY_PROCESS_NAME = 256, GY_EVENTS = 64, GY_MIG_PROFILES = 24 };

enum gy_health { GY_HEALTH_OK = 0, GY_HEALTH_UNHEALTHY = 1, GY_HEALTH_OFF_THE_BUS = 2 };

/* Constant for the life of the file, but for `published` and `replaced`. */
struct gy_header {
    char magic[8];
    uint32_t version;
    uint32_t replaced;
    uint64_t published; /* 0: nothing was written yet. */
    uint64_t body_offset[2];
    uint64_t body_size;
    uint32_t product_capacity, device_capacity, mig_capacity, process_capacity;
    uint32_t products_at, devices_at, migs_at,
        processes_at; /* From the start of a body, which starts with a gy_machine. */
};

/* `type` is the bit of NVML's event types; `data` is the Xid, or for a performance state its number. */
struct gy_event {
    uint64_t type;
    uint64_t data;
    int32_t gpu_instance, compute_instance;
    char uuid[GY_UUID];
};

/* Event number n (counted from zero) lies in slot n % GY_EVENTS. */
struct gy_machine {
    uint64_t taken_at_ms;
    uint64_t event_count;
    uint32_t product_count, device_count, mig_count, process_count;
    uint32_t cuda_major, cuda_minor;
    char name[GY_NAME];
    char driver_version[GY_TEXT];
    char mig_strategy[GY_TEXT];
    struct gy_event events[GY_EVENTS];
};

/* `kind` is NVML's NVML_GPU_INSTANCE_PROFILE_*; `id` is the number nvidia-smi mig -lgip shows. */
struct gy_mig_profile {
    uint64_t memory_bytes;
    uint32_t kind, id;
    uint32_t slices, instances_max, multiprocessors;
    uint32_t copy_engines, decoders, encoders, jpegs, ofas;
    char name[GY_TEXT];
};

struct gy_product {
    uint64_t bar1_bytes;
    uint32_t brand, architecture; /* NVML's numbers. */
    uint32_t compute_major, compute_minor;
    uint32_t multiprocessors, cuda_cores, memory_bus_bits;
    uint32_t graphics_max_mhz, sm_max_mhz, memory_max_mhz, video_max_mhz;
    uint32_t power_min_mw, power_max_mw, power_default_mw;
    uint32_t slowdown_c, shutdown_c, gpu_max_c, memory_max_c;
    uint32_t pcie_generation, pcie_width;
    uint32_t fans, ecc, mig, mig_instances_max;
    uint32_t nvlinks, nvlink_mb_per_s, nvlink_version;
    uint32_t pci_device_id, pci_subsystem_id;
    uint32_t mig_profile_count;
    char name[GY_NAME];
    char family[GY_TEXT]; /* "Ampere", as nvidia-smi -q shows it. */
    char vbios[GY_TEXT];
    char part_number[GY_TEXT];
    struct gy_mig_profile mig_profiles[GY_MIG_PROFILES];
};

struct gy_device {
    uint64_t memory_total_bytes, memory_reserved_bytes, memory_used_bytes, memory_free_bytes;
    uint64_t energy_mj;
    uint64_t throttle_reasons;
    uint64_t ecc_volatile_corrected, ecc_volatile_uncorrected, ecc_aggregate_corrected, ecc_aggregate_uncorrected;
    uint64_t xid_count;
    uint64_t pcie_tx_bytes_per_s, pcie_rx_bytes_per_s;
    uint64_t nvlink_bytes;
    uint32_t index, minor;
    uint32_t product; /* Position in the products of this body. */
    uint32_t health;
    uint32_t gpu_percent, memory_percent, encoder_percent, decoder_percent;
    int32_t temperature_c, memory_temperature_c, fan_percent;
    uint32_t power_mw, power_limit_mw;
    uint32_t performance_state;
    uint32_t graphics_mhz, sm_mhz, memory_mhz, video_mhz;
    uint32_t has_ecc;
    uint32_t last_xid;
    uint32_t pcie_replays;
    uint32_t remapped_rows_corrected, remapped_rows_uncorrected;
    uint32_t mig_enabled;
    uint32_t pci_domain, pci_bus, pci_device;
    uint32_t first_mig, mig_count;
    uint32_t first_process, process_count;
    uint32_t numa_node, pcie_switch;
    char uuid[GY_UUID];
    char serial[GY_TEXT];
    char pci_bus_id[GY_TEXT]; /* "00000000:07:00.0" */
};

struct gy_mig {
    uint64_t memory_total_bytes, memory_used_bytes;
    uint32_t device; /* Position in the devices of this body. */
    uint32_t index, gpu_instance, compute_instance;
    uint32_t slices, multiprocessors;
    int32_t profile; /* Position in the product's profiles, or GY_NONE. */
    char uuid[GY_UUID];
    char profile_name[GY_TEXT];
};

/* `kind` is one character: 'C', 'G' or 'M'. `mig` is the instance's index on its device, or GY_NONE. */
struct gy_process {
    uint64_t memory_bytes;
    uint64_t started_at_ms;
    uint32_t pid, kind;
    uint32_t device; /* Position in the devices of this body. */
    int32_t mig, gpu_instance, compute_instance;
    uint32_t sm_percent, memory_percent;
    char name[GY_PROCESS_NAME];
};

#endif
