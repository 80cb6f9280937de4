/* dmon, pmon, topo -m and nvlink -s: short lines for people who watch. */
#include "smi.h"

#include <string.h>

enum { CELL = 24 };
enum { POWER_CAP = 0x4 | 0x80, THERMAL = 0x20 | 0x40 }; /* Bits of NVML's reasons for lower clocks. */

/* One column of dmon: the letter that chooses it, its heading and unit, its width, and what it shows of a GPU. */
struct column {
    char group;
    const char *name, *unit;
    int width;
    void (*read)(const struct smi_gpu *gpu, char *out);
};

#define COLUMN(function, has_it, value)                                       \
    static void function(const struct smi_gpu *gpu, char *out) {              \
        const struct gy_device *device = gpu->device;                         \
        if (has_it) snprintf(out, CELL, "%llu", (unsigned long long)(value)); \
        else snprintf(out, CELL, "-");                                        \
    }

COLUMN(power, 1, (device->power_mw + 500) / 1000)
COLUMN(temperature, 1, device->temperature_c)
COLUMN(memory_temperature, device->memory_temperature_c != GY_NONE, device->memory_temperature_c)
COLUMN(sm_use, !device->mig_enabled, device->gpu_percent)
COLUMN(memory_use, !device->mig_enabled, device->memory_percent)
COLUMN(encoder_use, !device->mig_enabled, device->encoder_percent)
COLUMN(decoder_use, !device->mig_enabled, device->decoder_percent)
COLUMN(no_use, !device->mig_enabled, 0)
COLUMN(memory_clock, 1, device->memory_mhz)
COLUMN(sm_clock, 1, device->sm_mhz)
COLUMN(power_capped, 1, device->throttle_reasons & POWER_CAP ? 100 : 0)
COLUMN(too_hot, 1, !!(device->throttle_reasons & THERMAL))
COLUMN(used, 1, smi_mib(device->memory_used_bytes))
COLUMN(bar1, device->memory_total_bytes, 1)
COLUMN(corrected, device->has_ecc, device->ecc_volatile_corrected)
COLUMN(uncorrected, device->has_ecc, device->ecc_volatile_uncorrected)
COLUMN(replays, 1, device->pcie_replays)
COLUMN(received, 1, device->pcie_rx_bytes_per_s >> 20)
COLUMN(sent, 1, device->pcie_tx_bytes_per_s >> 20)

static const struct column COLUMNS[] = {
    {'p', "pwr", "W", 6, power},
    {'p', "gtemp", "C", 6, temperature},
    {'p', "mtemp", "C", 6, memory_temperature},
    {'u', "sm", "%", 6, sm_use},
    {'u', "mem", "%", 6, memory_use},
    {'u', "enc", "%", 6, encoder_use},
    {'u', "dec", "%", 6, decoder_use},
    {'u', "jpg", "%", 6, no_use},
    {'u', "ofa", "%", 6, no_use},
    {'c', "mclk", "MHz", 6, memory_clock},
    {'c', "pclk", "MHz", 6, sm_clock},
    {'v', "pviol", "%", 6, power_capped},
    {'v', "tviol", "bool", 6, too_hot},
    {'m', "fb", "MB", 7, used},
    {'m', "bar1", "MB", 6, bar1},
    {'e', "sbecc", "errs", 6, corrected},
    {'e', "dbecc", "errs", 6, uncorrected},
    {'e', "pci", "errs", 6, replays},
    {'t', "rxpci", "MB/s", 6, received},
    {'t', "txpci", "MB/s", 6, sent},
};

enum { COLUMN_COUNT = sizeof COLUMNS / sizeof *COLUMNS };

int smi_known_groups(const char *groups) {
    char known[COLUMN_COUNT + 1] = "";
    for (int i = 0; i < COLUMN_COUNT; i++) known[i] = COLUMNS[i].group;
    return *groups && !groups[strspn(groups, known)];
}

static void device_heading(FILE *out, const struct monitor *monitor) {
    const char *indent = monitor->date || monitor->time ? "" : " ";
    fprintf(out, "#%s%s%sgpu", monitor->date ? "Date       " : "", monitor->time ? "Time        " : "", indent);
    for (int i = 0; i < COLUMN_COUNT; i++)
        if (strchr(monitor->groups, COLUMNS[i].group)) fprintf(out, " %*s", COLUMNS[i].width, COLUMNS[i].name);
    fprintf(out, "\n#%s%s%sIdx", monitor->date ? "YYYYMMDD   " : "", monitor->time ? "HH:MM:SS    " : "", indent);
    for (int i = 0; i < COLUMN_COUNT; i++)
        if (strchr(monitor->groups, COLUMNS[i].group)) fprintf(out, " %*s", COLUMNS[i].width, COLUMNS[i].unit);
    fputc('\n', out);
}

static void row_start(FILE *out, const struct monitor *monitor, unsigned index) {
    char now[CELL];
    fputc(' ', out);
    if (monitor->date) fprintf(out, "%s   ", smi_now(now, sizeof now, "%Y%m%d"));
    if (monitor->time) fprintf(out, "%s    ", smi_now(now, sizeof now, "%H:%M:%S"));
    fprintf(out, "%*u", monitor->date || monitor->time ? 3 : 4, index);
}

void smi_device_monitor(struct smi *smi, int header, const struct monitor *monitor) {
    if (header) device_heading(smi->out, monitor);
    for (unsigned g = 0; g < smi->count; g++) {
        row_start(smi->out, monitor, smi->gpus[g].index);
        for (int i = 0; i < COLUMN_COUNT; i++) {
            char cell[CELL];
            if (!strchr(monitor->groups, COLUMNS[i].group)) continue;
            COLUMNS[i].read(&smi->gpus[g], cell);
            fprintf(smi->out, " %*s", COLUMNS[i].width, cell);
        }
        fputc('\n', smi->out);
    }
}

void smi_process_monitor(struct smi *smi, int header) {
    if (header)
        fputs(
            "# gpu         pid   type     sm    mem    enc    dec    jpg    ofa    command\n"
            "# Idx           #    C/G      %      %      %      %      %      %    name\n",
            smi->out);
    for (unsigned i = 0; i < smi->count; i++) {
        struct gy_span span;
        if (!smi_processes(smi, &smi->gpus[i], &span))
            fprintf(smi->out, "%5u  %10s  %5s  %5s  %5s  %5s  %5s  %5s  %5s    %s\n", smi->gpus[i].index, "-", "-", "-",
                    "-", "-", "-", "-", "-", "-");
        for (uint32_t p = span.first; p < span.end; p++) {
            const struct gy_process *process = &smi->reading.processes[p];
            if (!smi_shows_process(smi, &smi->gpus[i], p)) continue;
            const char *slash = strrchr(process->name, '/');
            fprintf(smi->out, "%5u  %10u  %5s  %5u  %5u  %5s  %5s  %5s  %5s    %-15.15s\n", smi->gpus[i].index,
                    process->pid,
                    process->kind == 'M'   ? "M+C"
                    : process->kind == 'G' ? "G"
                                           : "C",
                    process->sm_percent, process->memory_percent, "-", "-", "-", "-",
                    slash ? slash + 1 : process->name);
        }
    }
}

static void connection(struct smi *smi, const struct smi_gpu *one, const struct smi_gpu *other) {
    const struct gy_device *here = one->device, *there = other->device;
    if (one == other) fputs("\t X ", smi->out);
    else if (one->product->nvlinks && one->product == other->product) fprintf(smi->out, "\tNV%u", one->product->nvlinks);
    else if (here->pcie_switch == there->pcie_switch) fputs("\tPIX", smi->out);
    else fputs(here->numa_node == there->numa_node ? "\tNODE" : "\tSYS", smi->out);
}

void smi_topology(struct smi *smi) {
    for (unsigned i = 0; i < smi->count; i++) fprintf(smi->out, "\tGPU%u", smi->gpus[i].index);
    fputs("\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n", smi->out);
    for (unsigned i = 0; i < smi->count; i++) {
        fprintf(smi->out, "GPU%u", smi->gpus[i].index);
        for (unsigned j = 0; j < smi->count; j++) connection(smi, &smi->gpus[i], &smi->gpus[j]);
        fprintf(smi->out, "\t\t%u\t\tN/A\n", smi->gpus[i].device->numa_node);
    }
    fputs(
        "\nLegend:\n\n  X    = Self\n  SYS  = Connection across PCIe and the link between NUMA nodes\n"
        "  NODE = Connection across PCIe host bridges within one NUMA node\n"
        "  PIX  = Connection across one PCIe bridge\n"
        "  NV#  = Connection across a bonded set of # NVLinks\n",
        smi->out);
}

void smi_links(struct smi *smi) {
    for (unsigned i = 0; i < smi->count; i++) {
        const struct smi_gpu *gpu = &smi->gpus[i];
        fprintf(smi->out, "GPU %u: %s (UUID: %s)\n", gpu->index, gpu->product->name, gpu->device->uuid);
        for (unsigned link = 0; link < gpu->product->nvlinks; link++)
            fprintf(smi->out, "\t Link %u: %.3f GB/s\n", link, gpu->product->nvlink_mb_per_s / 1000.0);
        if (!gpu->product->nvlinks)
            fputs("Unable to retrieve NVLink information as all links are inActive\n", smi->out);
    }
}
