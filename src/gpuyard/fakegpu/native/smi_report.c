/* The long report of -q, as text or with -x as XML. Both are one document with two ways to write it. */
#include "smi.h"

#include <ctype.h>
#include <stdarg.h>
#include <string.h>
#include <strings.h>

enum {
    GENERAL = 1 << 0,
    MEMORY = 1 << 1,
    UTILIZATION = 1 << 2,
    ECC = 1 << 3,
    TEMPERATURE = 1 << 4,
    POWER = 1 << 5,
    CLOCK = 1 << 6,
    COMPUTE = 1 << 7,
    PIDS = 1 << 8,
    PERFORMANCE = 1 << 9,
    ROW_REMAPPER = 1 << 10,
    SUPPORTED_CLOCKS = 1 << 11,
    ENCODER_STATS = 1 << 12,
    FBC_STATS = 1 << 13,
    PAGE_RETIREMENT = 1 << 14,
    VOLTAGES = 1 << 15,
    NOTHING = 1 << 16
};

static const struct {
    const char *word;
    unsigned display;
} DISPLAYS[] = {
    {"MEMORY", MEMORY},
    {"UTILIZATION", UTILIZATION},
    {"ECC", ECC},
    {"TEMPERATURE", TEMPERATURE},
    {"POWER", POWER},
    {"CLOCK", CLOCK},
    {"PIDS", PIDS},
    {"COMPUTE", COMPUTE},
    {"PERFORMANCE", PERFORMANCE},
    {"ROW_REMAPPER", ROW_REMAPPER},
    {"SUPPORTED_CLOCKS", SUPPORTED_CLOCKS},
    {"PAGE_RETIREMENT", PAGE_RETIREMENT},
    {"ENCODER_STATS", ENCODER_STATS},
    {"FBC_STATS", FBC_STATS},
    {"VOLTAGE", VOLTAGES},
    /* Known words about which there is nothing to say. */
    {"ACCOUNTING", NOTHING},
    {"RESET_STATUS", NOTHING},
    {"GSP_FIRMWARE_VERSION", NOTHING},
};

unsigned smi_display(const char *words, int *bad) {
    unsigned display = 0;
    *bad = 0;
    while (*words) {
        size_t length = strcspn(words, ","), i = 0, known = sizeof DISPLAYS / sizeof *DISPLAYS;
        while (i < known && (strlen(DISPLAYS[i].word) != length || strncasecmp(words, DISPLAYS[i].word, length))) i++;
        if (i == known) *bad = 1;
        else display |= DISPLAYS[i].display;
        words += length + (words[length] == ',');
    }
    return display;
}

/* ------------------------------------------------------------------------------------------------- the two writers */

enum { LABEL = 42 };

struct report {
    FILE *out;
    int xml;
    unsigned display;
    int depth;
};

static int shows(const struct report *report, unsigned part) { return !report->display || report->display & part; }

static void indent(const struct report *report) {
    for (int i = 0; i < report->depth; i++) fputs(report->xml ? "\t" : "    ", report->out);
}

static void escaped(FILE *out, const char *text) {
    for (; *text; text++) {
        if (*text == '&') fputs("&amp;", out);
        else if (*text == '<') fputs("&lt;", out);
        else if (*text == '>') fputs("&gt;", out);
        else fputc(iscntrl((unsigned char)*text) ? '?' : *text, out); /* XML has no way to write those. */
    }
}

static void open_section(struct report *report, const char *label, const char *tag) {
    indent(report);
    if (report->xml) fprintf(report->out, "<%s>\n", tag);
    else fprintf(report->out, "%s\n", label);
    report->depth++;
}

static void close_section(struct report *report, const char *tag) {
    report->depth--;
    if (!report->xml) return;
    indent(report);
    fprintf(report->out, "</%s>\n", tag);
}

__attribute__((format(printf, 4, 5))) static void item(struct report *report, const char *label, const char *tag,
                                                       const char *format, ...) {
    char value[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(value, sizeof value, format, arguments);
    va_end(arguments);
    indent(report);
    if (!report->xml) {
        fprintf(report->out, "%-*s: %s\n", LABEL - 4 * report->depth, label, value);
        return;
    }
    fprintf(report->out, "<%s>", tag);
    escaped(report->out, value);
    fprintf(report->out, "</%s>\n", tag);
}

/* A number the device may lack. */
static void number(struct report *report, const char *label, const char *tag, int has_it, unsigned long long value,
                   const char *unit) {
    if (has_it) item(report, label, tag, "%llu%s", value, unit);
    else item(report, label, tag, "N/A");
}

static void watts(struct report *report, const char *label, const char *tag, unsigned mw) {
    if (mw) item(report, label, tag, "%.2f W", mw / 1000.0);
    else item(report, label, tag, "N/A");
}

/* Scripts meet these with 0x in the text and without it in XML. */
static void hexadecimal(struct report *report, const char *label, const char *tag, int digits, unsigned value) {
    item(report, label, tag, "%s%0*X", report->xml ? "" : "0x", digits, value);
}

struct name {
    const char *label, *tag;
};

/* A section these GPUs have nothing for: parsers look for it all the same. Its items end with an empty one. */
static void lacks(struct report *report, struct name section, const struct name *items) {
    open_section(report, section.label, section.tag);
    for (; items->tag; items++) item(report, items->label, items->tag, "N/A");
    close_section(report, section.tag);
}

static const char *or_na(const char *text) { return *text ? text : "N/A"; }

/* --------------------------------------------------------------------------------------------------- parts of a GPU */

static const char *brand(const struct gy_product *product) { return product->brand == 2 ? "Tesla" : "NVIDIA"; }

static void mig_devices(struct report *report, struct smi *smi, const struct smi_gpu *gpu) {
    struct gy_span span = gy_migs_of(&smi->reading, smi_position(smi, gpu));
    if (!gpu->device->mig_enabled || span.first == span.end) {
        item(report, "MIG Devices", "mig_devices", "None");
        return;
    }
    open_section(report, "MIG Devices", "mig_devices");
    for (uint32_t m = span.first, index = 0; m < span.end; m++) {
        const struct gy_mig *mig = &smi->reading.migs[m];
        if (!smi_shows_mig(smi, m)) continue;
        open_section(report, "MIG Device", "mig_device");
        item(report, "Index", "index", "%u", index++);
        item(report, "GPU Instance ID", "gpu_instance_id", "%u", mig->gpu_instance);
        item(report, "Compute Instance ID", "compute_instance_id", "%u", mig->compute_instance);
        item(report, "UUID", "uuid", "%s", mig->uuid);
        open_section(report, "FB Memory Usage", "fb_memory_usage");
        item(report, "Total", "total", "%llu MiB", smi_mib(mig->memory_total_bytes));
        item(report, "Reserved", "reserved", "0 MiB");
        item(report, "Used", "used", "%llu MiB", smi_mib(mig->memory_used_bytes));
        item(report, "Free", "free", "%llu MiB", smi_mib(mig->memory_total_bytes - mig->memory_used_bytes));
        close_section(report, "fb_memory_usage");
        close_section(report, "mig_device");
    }
    close_section(report, "mig_devices");
}

static const struct name DRIVER_MODEL[] = {{"Current", "current_dm"}, {"Pending", "pending_dm"}, {0}};
static const struct name OPERATION_MODE[] = {{"Current", "current_gom"}, {"Pending", "pending_gom"}, {0}};
static const struct name INFOROM[] = {{"Image Version", "img_version"},
                                      {"OEM Object", "oem_object"},
                                      {"ECC Object", "ecc_object"},
                                      {"Power Management Object", "pwr_object"},
                                      {0}};
static const struct name RETIRED[] = {
    {"Retired Count", "retired_count"}, {"Retired Page List", "retired_pagelist"}, {0}};
static const struct name VOLTAGE[] = {{"Graphics", "graphics_volt"}, {0}};

static void identity(struct report *report, struct smi *smi, const struct smi_gpu *gpu) {
    const struct gy_device *device = gpu->device;
    const char *mig = !gpu->product->mig ? "N/A" : device->mig_enabled ? "Enabled" : "Disabled";
    item(report, "Product Name", "product_name", "%s", gpu->product->name);
    item(report, "Product Brand", "product_brand", "%s", brand(gpu->product));
    item(report, "Product Architecture", "product_architecture", "%s", or_na(gpu->product->family));
    item(report, "Display Mode", "display_mode", "Disabled");
    item(report, "Display Active", "display_active", "Disabled");
    item(report, "Persistence Mode", "persistence_mode", "Enabled");
    item(report, "Addressing Mode", "addressing_mode", "None");
    open_section(report, "MIG Mode", "mig_mode");
    item(report, "Current", "current_mig", "%s", mig);
    item(report, "Pending", "pending_mig", "%s", mig);
    close_section(report, "mig_mode");
    mig_devices(report, smi, gpu);
    item(report, "Accounting Mode", "accounting_mode", "Disabled");
    item(report, "Accounting Mode Buffer Size", "accounting_mode_buffer_size", "4000");
    lacks(report, (struct name){"Driver Model", "driver_model"}, DRIVER_MODEL);
    item(report, "Serial Number", "serial", "%s", or_na(device->serial));
    item(report, "GPU UUID", "uuid", "%s", device->uuid);
    item(report, "Minor Number", "minor_number", "%u", device->minor);
    item(report, "VBIOS Version", "vbios_version", "%s", or_na(gpu->product->vbios));
    item(report, "MultiGPU Board", "multigpu_board", "No");
    item(report, "Board ID", "board_id", "0x%x", device->pci_bus << 8);
    item(report, "Board Part Number", "board_part_number", "%s", or_na(gpu->product->part_number));
    item(report, "GPU Part Number", "gpu_part_number", "N/A");
    lacks(report, (struct name){"Inforom Version", "inforom_version"}, INFOROM);
    lacks(report, (struct name){"GPU Operation Mode", "gpu_operation_mode"}, OPERATION_MODE);
    open_section(report, "GPU Virtualization Mode", "gpu_virtualization_mode");
    item(report, "Virtualization Mode", "virtualization_mode", "None");
    item(report, "Host VGPU Mode", "host_vgpu_mode", "N/A");
    close_section(report, "gpu_virtualization_mode");
    item(report, "GSP Firmware Version", "gsp_firmware_version", "N/A");
}

static void pci(struct report *report, const struct smi_gpu *gpu) {
    const struct gy_device *device = gpu->device;
    const struct gy_product *product = gpu->product;
    open_section(report, "PCI", "pci");
    hexadecimal(report, "Bus", "pci_bus", 2, device->pci_bus);
    hexadecimal(report, "Device", "pci_device", 2, device->pci_device);
    hexadecimal(report, "Domain", "pci_domain", 4, device->pci_domain);
    hexadecimal(report, "Device Id", "pci_device_id", 8, product->pci_device_id);
    item(report, "Bus Id", "pci_bus_id", "%s", device->pci_bus_id);
    hexadecimal(report, "Sub System Id", "pci_sub_system_id", 8, product->pci_subsystem_id);
    open_section(report, "GPU Link Info", "pci_gpu_link_info");
    open_section(report, "PCIe Generation", "pcie_gen");
    number(report, "Max", "max_link_gen", product->pcie_generation > 0, product->pcie_generation, "");
    number(report, "Current", "current_link_gen", product->pcie_generation > 0, product->pcie_generation, "");
    close_section(report, "pcie_gen");
    open_section(report, "Link Width", "link_widths");
    number(report, "Max", "max_link_width", product->pcie_width > 0, product->pcie_width, "x");
    number(report, "Current", "current_link_width", product->pcie_width > 0, product->pcie_width, "x");
    close_section(report, "link_widths");
    close_section(report, "pci_gpu_link_info");
    item(report, "Replays Since Reset", "replay_counter", "%u", device->pcie_replays);
    item(report, "Replay Number Rollovers", "replay_rollover_counter", "0");
    item(report, "Tx Throughput", "tx_util", "%llu KB/s", (unsigned long long)device->pcie_tx_bytes_per_s / 1024);
    item(report, "Rx Throughput", "rx_util", "%llu KB/s", (unsigned long long)device->pcie_rx_bytes_per_s / 1024);
    close_section(report, "pci");
}

static const struct {
    const char *label, *tag;
    unsigned bit;
} REASONS[] = {
    {"Idle", "clocks_event_reason_gpu_idle", 0x1},
    {"Applications Clocks Setting", "clocks_event_reason_applications_clocks_setting", 0x2},
    {"SW Power Cap", "clocks_event_reason_sw_power_cap", 0x4},
    {"HW Slowdown", "clocks_event_reason_hw_slowdown", 0x8},
    {"HW Thermal Slowdown", "clocks_event_reason_hw_thermal_slowdown", 0x40},
    {"HW Power Brake Slowdown", "clocks_event_reason_hw_power_brake_slowdown", 0x80},
    {"Sync Boost", "clocks_event_reason_sync_boost", 0x10},
    {"SW Thermal Slowdown", "clocks_event_reason_sw_thermal_slowdown", 0x20},
};

static void performance(struct report *report, const struct gy_device *device) {
    item(report, "Performance State", "performance_state", "P%u", device->performance_state);
    open_section(report, "Clocks Event Reasons", "clocks_event_reasons");
    for (size_t i = 0; i < sizeof REASONS / sizeof *REASONS; i++)
        item(report, REASONS[i].label, REASONS[i].tag, "%s",
             device->throttle_reasons & REASONS[i].bit ? "Active" : "Not Active");
    close_section(report, "clocks_event_reasons");
}

static void memory(struct report *report, const struct smi_gpu *gpu) {
    const struct gy_device *device = gpu->device;
    open_section(report, "FB Memory Usage", "fb_memory_usage");
    item(report, "Total", "total", "%llu MiB", smi_mib(device->memory_total_bytes));
    item(report, "Reserved", "reserved", "%llu MiB", smi_mib(device->memory_reserved_bytes));
    item(report, "Used", "used", "%llu MiB", smi_mib(device->memory_used_bytes));
    item(report, "Free", "free", "%llu MiB", smi_mib(device->memory_free_bytes));
    close_section(report, "fb_memory_usage");
    unsigned long long bar1 = smi_mib(gpu->product->bar1_bytes);
    open_section(report, "BAR1 Memory Usage", "bar1_memory_usage");
    number(report, "Total", "total", bar1 > 0, bar1, " MiB");
    number(report, "Used", "used", bar1 > 0, 1, " MiB");
    number(report, "Free", "free", bar1 > 0, bar1 - 1, " MiB");
    close_section(report, "bar1_memory_usage");
}

static void utilization(struct report *report, const struct gy_device *device) {
    int has_it = !device->mig_enabled;
    open_section(report, "Utilization", "utilization");
    number(report, "GPU", "gpu_util", has_it, device->gpu_percent, " %");
    number(report, "Memory", "memory_util", has_it, device->memory_percent, " %");
    number(report, "Encoder", "encoder_util", has_it, device->encoder_percent, " %");
    number(report, "Decoder", "decoder_util", has_it, device->decoder_percent, " %");
    number(report, "JPEG", "jpeg_util", has_it, 0, " %");
    number(report, "OFA", "ofa_util", has_it, 0, " %");
    close_section(report, "utilization");
}

/* Nobody encodes or captures. */
static void sessions(struct report *report, const char *label, const char *tag) {
    open_section(report, label, tag);
    item(report, "Active Sessions", "session_count", "0");
    item(report, "Average FPS", "average_fps", "0");
    item(report, "Average Latency", "average_latency", "0");
    close_section(report, tag);
}

static void ecc_counts(struct report *report, int has_it, unsigned long long corrected,
                       unsigned long long uncorrected) {
    number(report, "SRAM Correctable", "sram_correctable", has_it, 0, "");
    number(report, "SRAM Uncorrectable", "sram_uncorrectable", has_it, 0, "");
    number(report, "DRAM Correctable", "dram_correctable", has_it, corrected, "");
    number(report, "DRAM Uncorrectable", "dram_uncorrectable", has_it, uncorrected, "");
}

static void ecc(struct report *report, const struct gy_device *device) {
    int has_it = (int)device->has_ecc;
    open_section(report, "ECC Mode", "ecc_mode");
    item(report, "Current", "current_ecc", "%s", has_it ? "Enabled" : "N/A");
    item(report, "Pending", "pending_ecc", "%s", has_it ? "Enabled" : "N/A");
    close_section(report, "ecc_mode");
    open_section(report, "ECC Errors", "ecc_errors");
    open_section(report, "Volatile", "volatile");
    ecc_counts(report, has_it, device->ecc_volatile_corrected, device->ecc_volatile_uncorrected);
    close_section(report, "volatile");
    open_section(report, "Aggregate", "aggregate");
    ecc_counts(report, has_it, device->ecc_aggregate_corrected, device->ecc_aggregate_uncorrected);
    close_section(report, "aggregate");
    close_section(report, "ecc_errors");
}

static void retired_pages(struct report *report) {
    open_section(report, "Retired Pages", "retired_pages");
    lacks(report, (struct name){"Single Bit ECC", "multiple_single_bit_retirement"}, RETIRED);
    lacks(report, (struct name){"Double Bit ECC", "double_bit_retirement"}, RETIRED);
    item(report, "Pending Page Blacklist", "pending_blacklist", "N/A");
    item(report, "Pending Page Retirement", "pending_retirement", "N/A");
    close_section(report, "retired_pages");
}

static void remapped_rows(struct report *report, const struct smi_gpu *gpu) {
    if (!gpu->device->has_ecc || gpu->product->compute_major < 8) {
        item(report, "Remapped Rows", "remapped_rows", "N/A");
        return;
    }
    open_section(report, "Remapped Rows", "remapped_rows");
    item(report, "Correctable Error", "remapped_row_corr", "%u", gpu->device->remapped_rows_corrected);
    item(report, "Uncorrectable Error", "remapped_row_unc", "%u", gpu->device->remapped_rows_uncorrected);
    item(report, "Pending", "remapped_row_pending", "No");
    item(report, "Remapping Failure Occurred", "remapped_row_failure", "No");
    close_section(report, "remapped_rows");
}

static void temperature(struct report *report, const struct smi_gpu *gpu) {
    const struct gy_product *product = gpu->product;
    int sensor = gpu->device->memory_temperature_c != GY_NONE;
    open_section(report, "Temperature", "temperature");
    item(report, "GPU Current Temp", "gpu_temp", "%d C", gpu->device->temperature_c);
    number(report, "GPU Shutdown Temp", "gpu_temp_max_threshold", product->shutdown_c > 0, product->shutdown_c, " C");
    number(report, "GPU Slowdown Temp", "gpu_temp_slow_threshold", product->slowdown_c > 0, product->slowdown_c, " C");
    number(report, "GPU Max Operating Temp", "gpu_temp_max_gpu_threshold", product->gpu_max_c > 0, product->gpu_max_c,
           " C");
    number(report, "Memory Current Temp", "memory_temp", sensor, (unsigned)gpu->device->memory_temperature_c, " C");
    number(report, "Memory Max Operating Temp", "gpu_temp_max_mem_threshold", product->memory_max_c > 0,
           product->memory_max_c, " C");
    close_section(report, "temperature");
}

static void power(struct report *report, const struct smi_gpu *gpu) {
    open_section(report, "GPU Power Readings", "gpu_power_readings");
    item(report, "Power State", "power_state", "P%u", gpu->device->performance_state);
    watts(report, "Power Draw", "power_draw", gpu->device->power_mw); /* Until driver 565; the others since then. */
    watts(report, "Average Power Draw", "average_power_draw", gpu->device->power_mw);
    watts(report, "Instantaneous Power Draw", "instant_power_draw", gpu->device->power_mw);
    watts(report, "Current Power Limit", "current_power_limit", gpu->device->power_limit_mw);
    watts(report, "Requested Power Limit", "requested_power_limit", gpu->device->power_limit_mw);
    watts(report, "Default Power Limit", "default_power_limit", gpu->product->power_default_mw);
    watts(report, "Min Power Limit", "min_power_limit", gpu->product->power_min_mw);
    watts(report, "Max Power Limit", "max_power_limit", gpu->product->power_max_mw);
    close_section(report, "gpu_power_readings");
}

static void clock_set(struct report *report, const char *label, const char *tag, const unsigned mhz[4]) {
    open_section(report, label, tag);
    number(report, "Graphics", "graphics_clock", mhz[0] > 0, mhz[0], " MHz");
    number(report, "SM", "sm_clock", mhz[1] > 0, mhz[1], " MHz");
    number(report, "Memory", "mem_clock", mhz[2] > 0, mhz[2], " MHz");
    number(report, "Video", "video_clock", mhz[3] > 0, mhz[3], " MHz");
    close_section(report, tag);
}

static void application_clocks(struct report *report, const char *label, const char *tag,
                               const struct gy_product *product) {
    open_section(report, label, tag);
    number(report, "Graphics", "graphics_clock", product->graphics_max_mhz > 0, product->graphics_max_mhz, " MHz");
    number(report, "Memory", "mem_clock", product->memory_max_mhz > 0, product->memory_max_mhz, " MHz");
    close_section(report, tag);
}

static void clocks(struct report *report, const struct smi_gpu *gpu) {
    const struct gy_device *now = gpu->device;
    const struct gy_product *most = gpu->product;
    clock_set(report, "Clocks", "clocks",
              (const unsigned[4]){now->graphics_mhz, now->sm_mhz, now->memory_mhz, now->video_mhz});
    application_clocks(report, "Applications Clocks", "applications_clocks", most);
    application_clocks(report, "Default Applications Clocks", "default_applications_clocks", most);
    clock_set(report, "Max Clocks", "max_clocks",
              (const unsigned[4]){most->graphics_max_mhz, most->sm_max_mhz, most->memory_max_mhz, most->video_max_mhz});
}

enum { STEP_MHZ = 15, LEAST_MHZ = 210 };

/* Only on request: it is longer than all the rest. */
static void supported_clocks(struct report *report, const struct gy_product *product) {
    open_section(report, "Supported Clocks", "supported_clocks");
    open_section(report, "Memory", "supported_mem_clock");
    item(report, "Value", "value", "%u MHz", product->memory_max_mhz);
    for (unsigned mhz = product->graphics_max_mhz; mhz >= LEAST_MHZ; mhz -= STEP_MHZ)
        item(report, "Graphics", "supported_graphics_clock", "%u MHz", mhz);
    close_section(report, "supported_mem_clock");
    close_section(report, "supported_clocks");
}

static void one_process(struct report *report, const struct gy_process *process) {
    open_section(report, "Process", "process_info");
    if (process->gpu_instance == GY_NONE) item(report, "GPU instance ID", "gpu_instance_id", "N/A");
    else item(report, "GPU instance ID", "gpu_instance_id", "%d", process->gpu_instance);
    if (process->compute_instance == GY_NONE) item(report, "Compute instance ID", "compute_instance_id", "N/A");
    else item(report, "Compute instance ID", "compute_instance_id", "%d", process->compute_instance);
    item(report, "Process ID", "pid", "%u", process->pid);
    item(report, "Type", "type", "%s", process->kind == 'M' ? "M+C" : process->kind == 'G' ? "G" : "C");
    item(report, "Name", "process_name", "%s", process->name);
    item(report, "Used GPU Memory", "used_memory", "%llu MiB", smi_mib(process->memory_bytes));
    close_section(report, "process_info");
}

static void processes(struct report *report, struct smi *smi, const struct smi_gpu *gpu) {
    struct gy_span span;
    if (!smi_processes(smi, gpu, &span) && !report->xml) {
        item(report, "Processes", "processes", "None");
        return;
    }
    open_section(report, "Processes", "processes");
    for (uint32_t p = span.first; p < span.end; p++)
        if (smi_shows_process(smi, gpu, p)) one_process(report, &smi->reading.processes[p]);
    close_section(report, "processes");
}

static void one_gpu(struct report *report, struct smi *smi, const struct smi_gpu *gpu) {
    if (report->xml) fprintf(report->out, "\t<gpu id=\"%s\">\n", gpu->device->pci_bus_id);
    else fprintf(report->out, "GPU %s\n", gpu->device->pci_bus_id);
    report->depth = report->xml ? 2 : 1;
    if (shows(report, GENERAL)) {
        identity(report, smi, gpu);
        pci(report, gpu);
        number(report, "Fan Speed", "fan_speed", gpu->device->fan_percent != GY_NONE,
               (unsigned)gpu->device->fan_percent, " %");
    }
    if (shows(report, PERFORMANCE)) performance(report, gpu->device);
    if (shows(report, MEMORY)) memory(report, gpu);
    if (shows(report, COMPUTE)) item(report, "Compute Mode", "compute_mode", "Default");
    if (shows(report, UTILIZATION)) utilization(report, gpu->device);
    if (shows(report, ENCODER_STATS)) sessions(report, "Encoder Stats", "encoder_stats");
    if (shows(report, FBC_STATS)) sessions(report, "FBC Stats", "fbc_stats");
    if (shows(report, ECC)) ecc(report, gpu->device);
    if (shows(report, PAGE_RETIREMENT)) retired_pages(report);
    if (shows(report, ROW_REMAPPER)) remapped_rows(report, gpu);
    if (shows(report, TEMPERATURE)) temperature(report, gpu);
    if (shows(report, POWER)) power(report, gpu);
    if (shows(report, CLOCK)) clocks(report, gpu);
    if (shows(report, VOLTAGES)) lacks(report, (struct name){"Voltage", "voltage"}, VOLTAGE);
    if (report->display & SUPPORTED_CLOCKS) supported_clocks(report, gpu->product);
    if (shows(report, PIDS)) processes(report, smi, gpu);
    if (report->xml) fputs("\t\t<accounted_processes>\n\t\t</accounted_processes>\n\t</gpu>\n", report->out);
    else fputc('\n', report->out);
    report->depth = report->xml ? 1 : 0;
}

void smi_report(struct smi *smi, int xml, unsigned display) {
    struct report report = {smi->out, xml, display, xml};
    const struct gy_machine *machine = smi->reading.machine;
    char now[64];
    if (xml)
        fputs("<?xml version=\"1.0\" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM \"nvsmi_device_v12.dtd\">\n<nvidia_smi_log>\n",
              smi->out);
    else fputs("\n==============NVSMI LOG==============\n\n", smi->out);
    item(&report, "Timestamp", "timestamp", "%s", smi_now(now, sizeof now, "%a %b %e %H:%M:%S %Y"));
    item(&report, "Driver Version", "driver_version", "%s", machine->driver_version);
    item(&report, "CUDA Version", "cuda_version", "%u.%u", machine->cuda_major, machine->cuda_minor);
    if (!xml) fputc('\n', smi->out);
    item(&report, "Attached GPUs", "attached_gpus", "%u", smi->visible);
    for (unsigned i = 0; i < smi->count; i++) one_gpu(&report, smi, &smi->gpus[i]);
    if (xml) fputs("</nvidia_smi_log>\n", smi->out);
}
