/* dmon, pmon and topo -m: short lines for people who watch. */
#include "smi.h"

#include <string.h>

static void dash_or(char *out, size_t size, int has_it, unsigned long long value) {
    if (has_it) snprintf(out, size, "%llu", value);
    else snprintf(out, size, "-");
}

void smi_device_monitor(struct smi *smi, int header) {
    if (header)
        fputs("# gpu    pwr  gtemp  mtemp     sm    mem    enc    dec    jpg    ofa   mclk   pclk\n"
              "# Idx      W      C      C      %      %      %      %      %      %    MHz    MHz\n",
              smi->out);
    for (unsigned i = 0; i < smi->count; i++) {
        const struct gy_device *device = smi->gpus[i].device;
        char memory[24], use[5][24];
        int whole = !device->mig_enabled;
        dash_or(memory, sizeof memory, device->memory_temperature_c != GY_NONE, (unsigned)device->memory_temperature_c);
        dash_or(use[0], sizeof use[0], whole, device->gpu_percent);
        dash_or(use[1], sizeof use[1], whole, device->memory_percent);
        dash_or(use[2], sizeof use[2], whole, device->encoder_percent);
        dash_or(use[3], sizeof use[3], whole, device->decoder_percent);
        dash_or(use[4], sizeof use[4], whole, 0);
        fprintf(smi->out, "%5u  %5u  %5d  %5s  %5s  %5s  %5s  %5s  %5s  %5s  %5u  %5u\n", smi->gpus[i].index,
                (device->power_mw + 500) / 1000, device->temperature_c, memory, use[0], use[1], use[2], use[3], use[4],
                use[4], device->memory_mhz, device->sm_mhz);
    }
}

void smi_process_monitor(struct smi *smi, int header) {
    if (header)
        fputs("# gpu         pid   type     sm    mem    enc    dec    jpg    ofa    command\n"
              "# Idx           #    C/G      %      %      %      %      %      %    name\n",
              smi->out);
    for (unsigned i = 0; i < smi->count; i++) {
        struct gy_span span;
        if (!smi_processes(smi, &smi->gpus[i], &span))
            fprintf(smi->out, "%5u  %10s  %5s  %5s  %5s  %5s  %5s  %5s  %5s    %s\n", smi->gpus[i].index, "-", "-", "-", "-",
                    "-", "-", "-", "-", "-");
        for (uint32_t p = span.first; p < span.end; p++) {
            const struct gy_process *process = &smi->reading.processes[p];
            if (!smi_shows_process(smi, &smi->gpus[i], p)) continue;
            const char *slash = strrchr(process->name, '/');
            fprintf(smi->out, "%5u  %10u  %5s  %5u  %5u  %5s  %5s  %5s  %5s    %-15.15s\n", smi->gpus[i].index, process->pid,
                    process->kind == 'M' ? "M+C" : process->kind == 'G' ? "G" : "C", process->sm_percent,
                    process->memory_percent, "-", "-", "-", "-", slash ? slash + 1 : process->name);
        }
    }
}

void smi_topology(struct smi *smi) {
    for (unsigned i = 0; i < smi->count; i++) fprintf(smi->out, "\tGPU%u", smi->gpus[i].index);
    fputs("\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n", smi->out);
    for (unsigned i = 0; i < smi->count; i++) {
        fprintf(smi->out, "GPU%u", smi->gpus[i].index);
        for (unsigned j = 0; j < smi->count; j++) {
            if (i == j) fputs("\t X ", smi->out);
            else if (smi->gpus[i].product->nvlinks) fprintf(smi->out, "\tNV%u", smi->gpus[i].product->nvlinks);
            else fputs("\tNODE", smi->out);
        }
        fputs("\t\t\tN/A\n", smi->out);
    }
    fputs("\nLegend:\n\n  X    = Self\n  NODE = Connection across PCIe host bridges within one NUMA node\n"
          "  NV#  = Connection across a bonded set of # NVLinks\n",
          smi->out);
}
