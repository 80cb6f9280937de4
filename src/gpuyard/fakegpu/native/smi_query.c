/* --query-gpu, --query-compute-apps and their like: chosen fields as comma-separated values. */
#include "smi.h"

#include <string.h>

enum { VALUE = 320, FIELDS = 256 };

/* What a field is read off: a GPU, for the applications also a process, for the clocks also one of them. */
struct row {
    struct smi *smi;
    const struct smi_gpu *gpu;
    const struct gy_process *process;
    unsigned graphics_mhz;
};

/* Writes the value without its unit, or gives zero where the device has no such thing. */
typedef int reader(const struct row *row, char *out);

#define READ(name, has_it, ...)                                    \
    static int name(const struct row *row, char *out) {            \
        const struct gy_device *device = row->gpu->device;         \
        const struct gy_product *product = row->gpu->product;      \
        (void)device, (void)product;                               \
        return (has_it) && snprintf(out, VALUE, __VA_ARGS__) >= 0; \
    }

#define NUMBER(name, has_it, value) READ(name, has_it, "%llu", (unsigned long long)(value))
#define MIB(name, bytes) READ(name, 1, "%llu", smi_mib(bytes))
#define WATTS(name, has_it, mw) READ(name, has_it, "%.2f", (mw) / 1000.0)
#define REASON(name, bit) READ(name, 1, "%s", device->throttle_reasons &(bit) ? "Active" : "Not Active")
#define ECC(name, value) NUMBER(name, device->has_ecc, value)
#define NOTHING(name) READ(name, 0, "%s", "")

/* --------------------------------------------------------------------------------------------- identity and modes */

static int timestamp(const struct row *row, char *out) {
    (void)row;
    return smi_now(out, VALUE, "%Y/%m/%d %H:%M:%S") != NULL;
}

READ(driver_version, 1, "%s", row->smi->reading.machine->driver_version)
NUMBER(count, 1, row->smi->visible)
READ(host_name, 1, "%s", row->smi->reading.machine->name)
READ(name, 1, "%s", product->name)
READ(serial, *device->serial, "%s", device->serial)
READ(uuid, 1, "%s", device->uuid)
NUMBER(index_, 1, row->gpu->index)
READ(bus_id, 1, "%s", device->pci_bus_id)
READ(pci_domain, 1, "0x%04X", device->pci_domain)
READ(pci_bus, 1, "0x%02X", device->pci_bus)
READ(pci_device, 1, "0x%02X", device->pci_device)
READ(pci_device_id, product->pci_device_id, "0x%08X", product->pci_device_id)
READ(pci_sub_id, product->pci_subsystem_id, "0x%08X", product->pci_subsystem_id)
READ(pci_class, 1, "0x%02X", 3)    /* A display controller, */
READ(pci_subclass, 1, "0x%02X", 2) /* of the kind without a display. */
READ(vbios, *product->vbios, "%s", product->vbios)
READ(compute_cap, product->compute_major, "%u.%u", product->compute_major, product->compute_minor)
READ(enabled, 1, "%s", "Enabled")
READ(disabled, 1, "%s", "Disabled")
READ(mode_default, 1, "%s", "Default")
READ(no, 1, "%s", "No")
NOTHING(absent)
NUMBER(link_generation, product->pcie_generation, product->pcie_generation)
NUMBER(link_width, product->pcie_width, product->pcie_width)
READ(performance_state, 1, "P%u", device->performance_state)
READ(mig_mode, product->mig, "%s", device->mig_enabled ? "Enabled" : "Disabled")
READ(ecc_mode, device->has_ecc, "%s", "Enabled")
NUMBER(numa, 0, 0)

/* ---------------------------------------------------------------------------------------------- memory and use */

MIB(memory_total, device->memory_total_bytes)
MIB(memory_reserved, device->memory_reserved_bytes)
MIB(memory_used, device->memory_used_bytes)
MIB(memory_free, device->memory_free_bytes)
NUMBER(gpu_use, !device->mig_enabled, device->gpu_percent)
NUMBER(memory_use, !device->mig_enabled, device->memory_percent)
NUMBER(encoder_use, !device->mig_enabled, device->encoder_percent)
NUMBER(decoder_use, !device->mig_enabled, device->decoder_percent)
NUMBER(zero_use, !device->mig_enabled, 0)
NUMBER(zero, 1, 0)

/* ------------------------------------------------------------------------------- temperature, power and clocks */

READ(temperature, 1, "%d", device->temperature_c)
READ(memory_temperature, device->memory_temperature_c != GY_NONE, "%d", device->memory_temperature_c)
READ(margin, product->slowdown_c, "%d", (int)product->slowdown_c - device->temperature_c)
NUMBER(fan_speed, device->fan_percent != GY_NONE, device->fan_percent)
WATTS(power, 1, device->power_mw)
WATTS(power_limit, 1, device->power_limit_mw)
WATTS(power_default, product->power_default_mw, product->power_default_mw)
WATTS(power_min, product->power_min_mw, product->power_min_mw)
WATTS(power_max, product->power_max_mw, product->power_max_mw)
NUMBER(clock_graphics, 1, device->graphics_mhz)
NUMBER(clock_sm, 1, device->sm_mhz)
NUMBER(clock_memory, 1, device->memory_mhz)
NUMBER(clock_video, 1, device->video_mhz)
NUMBER(max_graphics, product->graphics_max_mhz, product->graphics_max_mhz)
NUMBER(max_sm, product->sm_max_mhz, product->sm_max_mhz)
NUMBER(max_memory, product->memory_max_mhz, product->memory_max_mhz)
READ(reasons, 1, "0x%016llX", (unsigned long long)device->throttle_reasons)
READ(all_reasons, 1, "0x%016X", 0x1FF)
REASON(idle_reason, 0x1)
REASON(setting_reason, 0x2)
REASON(power_reason, 0x4)
REASON(slowdown_reason, 0x8)
REASON(sync_reason, 0x10)
REASON(software_thermal_reason, 0x20)
REASON(hardware_thermal_reason, 0x40)
REASON(brake_reason, 0x80)

/* ------------------------------------------------------------------------------------------------------- errors */

ECC(volatile_corrected, device->ecc_volatile_corrected)
ECC(volatile_uncorrected, device->ecc_volatile_uncorrected)
ECC(aggregate_corrected, device->ecc_aggregate_corrected)
ECC(aggregate_uncorrected, device->ecc_aggregate_uncorrected)
ECC(ecc_none, 0)
READ(ecc_within, device->has_ecc, "%s", "No")

NUMBER(rows_corrected, device->has_ecc && product->compute_major >= 8, device->remapped_rows_corrected)
NUMBER(rows_uncorrected, device->has_ecc && product->compute_major >= 8, device->remapped_rows_uncorrected)
NUMBER(rows_none, device->has_ecc && product->compute_major >= 8, 0)

/* ------------------------------------------------------------------------------------------------ applications */

READ(process_id, 1, "%u", row->process->pid)
READ(process_name, 1, "%s", row->process->name)
MIB(process_memory, row->process->memory_bytes)
NUMBER(supported_graphics, 1, row->graphics_mhz)

struct field {
    const char *name;  /* As the heading shows it. */
    const char *other; /* Another name a script may use, or an empty text. */
    const char *unit;
    reader *read;
};

/* In the query about GPUs, and in one of its own. */
#define ROW_COUNTS                                                                                 \
    {"remapped_rows.correctable", "", "", rows_corrected},                                         \
        {"remapped_rows.uncorrectable", "", "", rows_uncorrected},                                 \
        {"remapped_rows.pending", "", "", rows_none}, {                                            \
        "remapped_rows.failure", "", "", rows_none                                                 \
    }

static const struct field GPU_FIELDS[] = {
    {"timestamp", "", "", timestamp},
    {"driver_version", "", "", driver_version},
    {"count", "", "", count},
    {"name", "gpu_name", "", name},
    {"serial", "gpu_serial", "", serial},
    {"uuid", "gpu_uuid", "", uuid},
    {"index", "", "", index_},
    {"pci.bus_id", "gpu_bus_id", "", bus_id},
    {"pci.domain", "", "", pci_domain},
    {"pci.bus", "", "", pci_bus},
    {"pci.device", "", "", pci_device},
    {"pci.baseClass", "", "", pci_class},
    {"pci.subClass", "", "", pci_subclass},
    {"pci.device_id", "", "", pci_device_id},
    {"pci.sub_device_id", "", "", pci_sub_id},
    {"vgpu_driver_capability.heterogenous_multivGPU", "", "", absent},
    {"pcie.link.gen.current", "", "", link_generation},
    {"pcie.link.gen.gpucurrent", "", "", link_generation},
    {"pcie.link.gen.max", "", "", link_generation},
    {"pcie.link.gen.gpumax", "", "", link_generation},
    {"pcie.link.gen.hostmax", "", "", link_generation},
    {"pcie.link.width.current", "", "", link_width},
    {"pcie.link.width.max", "", "", link_width},
    {"display_attached", "", "", no},
    {"display_mode", "", "", disabled},
    {"display_active", "", "", disabled},
    {"persistence_mode", "", "", enabled},
    {"accounting.mode", "", "", disabled},
    {"accounting.buffer_size", "", "", absent},
    {"addressing_mode", "", "", absent},
    {"driver_model.current", "", "", absent},
    {"driver_model.pending", "", "", absent},
    {"vbios_version", "", "", vbios},
    {"inforom.img", "inforom.image", "", absent},
    {"inforom.oem", "", "", absent},
    {"inforom.ecc", "", "", absent},
    {"inforom.pwr", "inforom.power", "", absent},
    {"inforom.checksum_validation", "", "", absent},
    {"gpu_recovery_action", "", "", absent},
    {"gom.current", "gpu_operation_mode.current", "", absent},
    {"gom.pending", "gpu_operation_mode.pending", "", absent},
    {"fan.speed", "", "%", fan_speed},
    {"pstate", "", "", performance_state},
    {"clocks_event_reasons.supported", "clocks_throttle_reasons.supported", "", all_reasons},
    {"clocks_event_reasons.active", "clocks_throttle_reasons.active", "", reasons},
    {"clocks_event_reasons.gpu_idle", "clocks_throttle_reasons.gpu_idle", "", idle_reason},
    {"clocks_event_reasons.applications_clocks_setting", "clocks_throttle_reasons.applications_clocks_setting", "",
     setting_reason},
    {"clocks_event_reasons.sw_power_cap", "clocks_throttle_reasons.sw_power_cap", "", power_reason},
    {"clocks_event_reasons.hw_slowdown", "clocks_throttle_reasons.hw_slowdown", "", slowdown_reason},
    {"clocks_event_reasons.hw_thermal_slowdown", "clocks_throttle_reasons.hw_thermal_slowdown", "",
     hardware_thermal_reason},
    {"clocks_event_reasons.hw_power_brake_slowdown", "clocks_throttle_reasons.hw_power_brake_slowdown", "",
     brake_reason},
    {"clocks_event_reasons.sw_thermal_slowdown", "clocks_throttle_reasons.sw_thermal_slowdown", "",
     software_thermal_reason},
    {"clocks_event_reasons.sync_boost", "clocks_throttle_reasons.sync_boost", "", sync_reason},
    {"clocks_event_reasons_counters.sw_power_cap", "", "us", absent},
    {"clocks_event_reasons_counters.sync_boost", "", "us", absent},
    {"clocks_event_reasons_counters.sw_thermal_slowdown", "", "us", absent},
    {"clocks_event_reasons_counters.hw_thermal_slowdown", "", "us", absent},
    {"clocks_event_reasons_counters.hw_power_brake_slowdown", "", "us", absent},
    {"memory.total", "", "MiB", memory_total},
    {"memory.reserved", "", "MiB", memory_reserved},
    {"memory.used", "", "MiB", memory_used},
    {"memory.free", "", "MiB", memory_free},
    {"compute_mode", "", "", mode_default},
    {"compute_cap", "", "", compute_cap},
    {"utilization.gpu", "", "%", gpu_use},
    {"utilization.memory", "", "%", memory_use},
    {"utilization.encoder", "", "%", encoder_use},
    {"utilization.decoder", "", "%", decoder_use},
    {"utilization.jpeg", "", "%", zero_use},
    {"utilization.ofa", "", "%", zero_use},
    {"encoder.stats.sessionCount", "", "", zero},
    {"encoder.stats.averageFps", "", "", zero},
    {"encoder.stats.averageLatency", "", "", zero},
    {"dramEncryption.mode.current", "", "", absent},
    {"dramEncryption.mode.pending", "", "", absent},
    {"ecc.mode.current", "", "", ecc_mode},
    {"ecc.mode.pending", "", "", ecc_mode},
    {"ecc.errors.corrected.volatile.device_memory", "", "", volatile_corrected},
    {"ecc.errors.corrected.volatile.dram", "", "", volatile_corrected},
    {"ecc.errors.corrected.volatile.register_file", "", "", ecc_none},
    {"ecc.errors.corrected.volatile.l1_cache", "", "", ecc_none},
    {"ecc.errors.corrected.volatile.l2_cache", "", "", ecc_none},
    {"ecc.errors.corrected.volatile.texture_memory", "", "", ecc_none},
    {"ecc.errors.corrected.volatile.cbu", "", "", ecc_none},
    {"ecc.errors.corrected.volatile.sram", "", "", ecc_none},
    {"ecc.errors.corrected.volatile.total", "", "", volatile_corrected},
    {"ecc.errors.corrected.aggregate.device_memory", "", "", aggregate_corrected},
    {"ecc.errors.corrected.aggregate.dram", "", "", aggregate_corrected},
    {"ecc.errors.corrected.aggregate.register_file", "", "", ecc_none},
    {"ecc.errors.corrected.aggregate.l1_cache", "", "", ecc_none},
    {"ecc.errors.corrected.aggregate.l2_cache", "", "", ecc_none},
    {"ecc.errors.corrected.aggregate.texture_memory", "", "", ecc_none},
    {"ecc.errors.corrected.aggregate.cbu", "", "", ecc_none},
    {"ecc.errors.corrected.aggregate.sram", "", "", ecc_none},
    {"ecc.errors.corrected.aggregate.total", "", "", aggregate_corrected},
    {"ecc.errors.uncorrected.volatile.device_memory", "", "", volatile_uncorrected},
    {"ecc.errors.uncorrected.volatile.dram", "", "", volatile_uncorrected},
    {"ecc.errors.uncorrected.volatile.register_file", "", "", ecc_none},
    {"ecc.errors.uncorrected.volatile.l1_cache", "", "", ecc_none},
    {"ecc.errors.uncorrected.volatile.l2_cache", "", "", ecc_none},
    {"ecc.errors.uncorrected.volatile.texture_memory", "", "", ecc_none},
    {"ecc.errors.uncorrected.volatile.cbu", "", "", ecc_none},
    {"ecc.errors.uncorrected.volatile.sram", "", "", ecc_none},
    {"ecc.errors.uncorrected.volatile.total", "", "", volatile_uncorrected},
    {"ecc.errors.uncorrected.aggregate.device_memory", "", "", aggregate_uncorrected},
    {"ecc.errors.uncorrected.aggregate.dram", "", "", aggregate_uncorrected},
    {"ecc.errors.uncorrected.aggregate.register_file", "", "", ecc_none},
    {"ecc.errors.uncorrected.aggregate.l1_cache", "", "", ecc_none},
    {"ecc.errors.uncorrected.aggregate.l2_cache", "", "", ecc_none},
    {"ecc.errors.uncorrected.aggregate.texture_memory", "", "", ecc_none},
    {"ecc.errors.uncorrected.aggregate.cbu", "", "", ecc_none},
    {"ecc.errors.uncorrected.aggregate.sram", "", "", ecc_none},
    {"ecc.errors.uncorrected.aggregate.total", "", "", aggregate_uncorrected},
    {"ecc.errors.uncorrected.volatile.sram.parity", "", "", ecc_none},
    {"ecc.errors.uncorrected.volatile.sram.secded", "", "", ecc_none},
    {"ecc.errors.uncorrected.aggregate.sram.parity", "", "", ecc_none},
    {"ecc.errors.uncorrected.aggregate.sram.secded", "", "", ecc_none},
    {"ecc.errors.uncorrected.aggregate.sram.thresholdExceeded", "", "", ecc_within},
    {"ecc.errors.uncorrected.aggregate.sram.l2", "", "", ecc_none},
    {"ecc.errors.uncorrected.aggregate.sram.sm", "", "", ecc_none},
    {"ecc.errors.uncorrected.aggregate.sram.mcu", "", "", ecc_none},
    {"ecc.errors.uncorrected.aggregate.sram.pcie", "", "", ecc_none},
    {"ecc.errors.uncorrected.aggregate.sram.other", "", "", ecc_none},
    {"retired_pages.single_bit_ecc.count", "retired_pages.sbe", "", absent},
    {"retired_pages.double_bit.count", "retired_pages.dbe", "", absent},
    {"retired_pages.pending", "", "", absent},
    ROW_COUNTS,
    {"remapped_rows.histogram.max", "", "", absent},
    {"remapped_rows.histogram.high", "", "", absent},
    {"remapped_rows.histogram.partial", "", "", absent},
    {"remapped_rows.histogram.low", "", "", absent},
    {"remapped_rows.histogram.none", "", "", absent},
    {"temperature.gpu", "", "", temperature},
    {"temperature.gpu.tlimit", "", "", margin},
    {"temperature.memory", "", "", memory_temperature},
    {"power.management", "", "", enabled},
    {"power.draw", "", "W", power},
    {"power.draw.average", "", "W", power},
    {"power.draw.instant", "", "W", power},
    {"power.limit", "", "W", power_limit},
    {"enforced.power.limit", "", "W", power_limit},
    {"power.default_limit", "", "W", power_default},
    {"power.min_limit", "", "W", power_min},
    {"power.max_limit", "", "W", power_max},
    {"edpp_multiplier", "", "%", absent},
    {"clocks.current.graphics", "clocks.gr", "MHz", clock_graphics},
    {"clocks.current.sm", "clocks.sm", "MHz", clock_sm},
    {"clocks.current.memory", "clocks.mem", "MHz", clock_memory},
    {"clocks.current.video", "clocks.video", "MHz", clock_video},
    {"clocks.applications.graphics", "clocks.applications.gr", "MHz", max_graphics},
    {"clocks.applications.memory", "clocks.applications.mem", "MHz", max_memory},
    {"clocks.default_applications.graphics", "clocks.default_applications.gr", "MHz", max_graphics},
    {"clocks.default_applications.memory", "clocks.default_applications.mem", "MHz", max_memory},
    {"clocks.max.graphics", "clocks.max.gr", "MHz", max_graphics},
    {"clocks.max.sm", "", "MHz", max_sm},
    {"clocks.max.memory", "clocks.max.mem", "MHz", max_memory},
    {"mig.mode.current", "", "", mig_mode},
    {"mig.mode.pending", "", "", mig_mode},
    {"gsp.mode.current", "", "", absent},
    {"gsp.mode.default", "", "", absent},
    {"c2c.mode", "", "", absent},
    {"protected_memory.total", "", "MiB", zero},
    {"protected_memory.used", "", "MiB", zero},
    {"protected_memory.free", "", "MiB", zero},
    {"fabric.state", "", "", absent},
    {"fabric.status", "", "", absent},
    {"fabric.cliqueId", "", "", absent},
    {"fabric.clusterUuid", "", "", absent},
    {"platform.chassis_serial_number", "", "", absent},
    {"platform.slot_number", "", "", absent},
    {"platform.tray_index", "", "", absent},
    {"platform.host_id", "", "", absent},
    {"platform.peer_type", "", "", absent},
    {"platform.module_id", "", "", absent},
    {"platform.gpu_fabric_guid", "", "", absent},
    {"hostname", "", "", host_name},
    {"numa.node", "numa_node", "", numa},
};

/* How every other query names its GPU. */
#define GPU_NAMES                                                                                 \
    {"timestamp", "", "", timestamp}, {"gpu_name", "", "", name}, {"gpu_bus_id", "", "", bus_id}, \
        {"gpu_serial", "", "", serial}, {                                                         \
        "gpu_uuid", "", "", uuid                                                                  \
    }

static const struct field APP_FIELDS[] = {
    GPU_NAMES,
    {"pid", "", "", process_id},
    {"process_name", "name", "", process_name},
    {"used_gpu_memory", "used_memory", "MiB", process_memory},
};

static const struct field ROW_FIELDS[] = {
    GPU_NAMES,
    ROW_COUNTS,
};

static const struct field CLOCK_FIELDS[] = {
    GPU_NAMES,
    {"memory", "mem", "MHz", max_memory},
    {"graphics", "gr", "MHz", supported_graphics},
};

static const struct field PAGE_FIELDS[] = {
    GPU_NAMES,
    {"retired_pages.address", "", "", absent},
    {"retired_pages.cause", "", "", absent},
};

static const struct field ACCOUNTED_FIELDS[] = {
    GPU_NAMES,
    {"pid", "", "", absent},
    {"gpu_utilization", "gpu_util", "%", absent},
    {"mem_utilization", "mem_util", "%", absent},
    {"max_memory_usage", "max_mem_usage", "MiB", absent},
    {"time", "", "ms", absent},
};

struct field_list {
    const struct field *known;
    size_t size;
    struct csv csv;
    const struct field *chosen[FIELDS];
    unsigned count;
};

/* --------------------------------------------------------------------------------------------------- choosing fields */

static const struct field *named(const struct field_list *list, const char *word, size_t length) {
    for (size_t i = 0; i < list->size; i++) {
        const struct field *field = &list->known[i];
        if (strlen(field->name) == length && !memcmp(field->name, word, length)) return field;
        if (length && strlen(field->other) == length && !memcmp(field->other, word, length)) return field;
    }
    return NULL;
}

static enum exit_code choose(struct field_list *list, const char *words, FILE *out) {
    while (*words) {
        words += strspn(words, " ,");
        size_t length = strcspn(words, " ,");
        if (!length) break;
        const struct field *field = named(list, words, length);
        if (!field) {
            fprintf(out, "Field \"%.*s\" is not a valid field to query.\n\n", (int)length, words);
            return EXIT_BAD_ARGUMENT;
        }
        if (list->count < FIELDS) list->chosen[list->count++] = field;
        words += length;
    }
    if (list->count) return EXIT_OK;
    fprintf(out, "Field \"\" is not a valid field to query.\n\n");
    return EXIT_BAD_ARGUMENT;
}

/* ---------------------------------------------------------------------------------------------------------- printing */

static void print_header(const struct field_list *list, FILE *out) {
    if (!list->csv.header) return;
    for (unsigned i = 0; i < list->count; i++) {
        const struct field *field = list->chosen[i];
        fprintf(out, "%s%s", i ? ", " : "", field->name);
        if (*field->unit) fprintf(out, " [%s]", field->unit);
    }
    fputc('\n', out);
}

static void print_row(const struct field_list *list, const struct row *row) {
    char value[VALUE];
    FILE *out = row->smi->out;
    for (unsigned i = 0; i < list->count; i++) {
        const struct field *field = list->chosen[i];
        int has_it = field->read(row, value);
        fprintf(out, "%s%s", i ? ", " : "", has_it ? value : "[N/A]");
        if (has_it && list->csv.units && *field->unit) fprintf(out, " %s", field->unit);
    }
    fputc('\n', out);
}

/* The rows of a query about one GPU. */
typedef void rows(const struct field_list *list, struct smi *smi, const struct smi_gpu *gpu);

static void one_row(const struct field_list *list, struct smi *smi, const struct smi_gpu *gpu) {
    print_row(list, &(struct row){smi, gpu, NULL, 0});
}

static void no_rows(const struct field_list *list, struct smi *smi, const struct smi_gpu *gpu) {
    (void)list, (void)smi, (void)gpu;
}

static void process_rows(const struct field_list *list, struct smi *smi, const struct smi_gpu *gpu) {
    struct gy_span span;
    smi_processes(smi, gpu, &span);
    for (uint32_t p = span.first; p < span.end; p++)
        if (smi->reading.processes[p].kind != 'G' && smi_shows_process(smi, gpu, p))
            print_row(list, &(struct row){smi, gpu, &smi->reading.processes[p], 0});
}

enum { STEP_MHZ = 15, LEAST_MHZ = 210 };

static void clock_rows(const struct field_list *list, struct smi *smi, const struct smi_gpu *gpu) {
    for (unsigned mhz = gpu->product->graphics_max_mhz; mhz >= LEAST_MHZ; mhz -= STEP_MHZ)
        print_row(list, &(struct row){smi, gpu, NULL, mhz});
}

#define QUERY(option, fields, rows) {option, fields, sizeof fields / sizeof *fields, rows}

static const struct {
    const char *option;
    const struct field *fields;
    size_t size;
    rows *rows;
} QUERIES[] = {
    QUERY("--query-gpu", GPU_FIELDS, one_row),
    QUERY("--query-compute-apps", APP_FIELDS, process_rows),
    QUERY("--query-remapped-rows", ROW_FIELDS, one_row),
    QUERY("--query-supported-clocks", CLOCK_FIELDS, clock_rows),
    QUERY("--query-retired-pages", PAGE_FIELDS, no_rows),
    QUERY("--query-accounted-apps", ACCOUNTED_FIELDS, no_rows),
};

enum { COUNT = sizeof QUERIES / sizeof *QUERIES };

const char *smi_query_option(int query) { return query < COUNT ? QUERIES[query].option : NULL; }

enum exit_code smi_query(struct smi *smi, int query, const char *fields, struct csv csv) {
    struct field_list list = {.known = QUERIES[query].fields, .size = QUERIES[query].size, .csv = csv};
    enum exit_code code = choose(&list, fields, smi->out);
    if (code != EXIT_OK) return code;
    print_header(&list, smi->out);
    for (unsigned i = 0; i < smi->count; i++) QUERIES[query].rows(&list, smi, &smi->gpus[i]);
    return EXIT_OK;
}

void smi_query_help(int query, FILE *out) {
    fprintf(out, "List of valid properties to query for the switch \"%s=\":\n", QUERIES[query].option);
    for (size_t i = 0; i < QUERIES[query].size; i++) {
        const struct field *field = &QUERIES[query].fields[i];
        fprintf(out, "\n\"%s\"", field->name); /* Exporters look for the blank line before a name. */
        if (*field->other) fprintf(out, " or \"%s\"", field->other);
        fprintf(out, "%s%s%s\n", *field->unit ? " (" : "", field->unit, *field->unit ? ")" : "");
    }
}
