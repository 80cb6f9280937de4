/* The default table and the list of -L. */
#include "smi.h"

#include <string.h>

static const char WIDE[] =
    "+-----------------------------------------------------------------------------------------+\n";
static const char ROWS[] =
    "+-----------------------------------------+------------------------+----------------------+\n";

static void heading(struct smi *smi) {
    const struct gy_machine *machine = smi->reading.machine;
    char now[64], cuda[16];
    snprintf(cuda, sizeof cuda, "%u.%u", machine->cuda_major, machine->cuda_minor);
    fprintf(smi->out, "%-31s\n", smi_now(now, sizeof now, "%a %b %e %H:%M:%S %Y"));
    fputs(WIDE, smi->out);
    fprintf(smi->out, "| NVIDIA-SMI %-22s Driver Version: %-14s CUDA Version: %-8s |\n", machine->driver_version,
            machine->driver_version, cuda);
    fputs(
        "|-----------------------------------------+------------------------+----------------------+\n"
        "| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |\n"
        "| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |\n"
        "|                                         |                        |               MIG M. |\n"
        "|=========================================+========================+======================|\n",
        smi->out);
}

static void number_or(char *out, size_t size, int has_it, const char *format, unsigned long long value) {
    if (has_it) snprintf(out, size, format, value);
    else snprintf(out, size, "N/A");
}

static void gpu_rows(FILE *out, const struct smi_gpu *gpu) {
    const struct gy_device *device = gpu->device;
    char fan[24], ecc[24], use[24], memory[64];
    number_or(fan, sizeof fan, device->fan_percent != GY_NONE, "%llu%%", (unsigned long long)device->fan_percent);
    number_or(ecc, sizeof ecc, device->has_ecc, "%llu", device->ecc_volatile_uncorrected);
    number_or(use, sizeof use, !device->mig_enabled, "%llu%%", device->gpu_percent);
    snprintf(memory, sizeof memory, "%7lluMiB / %6lluMiB", smi_mib(device->memory_used_bytes),
             smi_mib(device->memory_total_bytes));
    fprintf(out, "| %3u  %-26.26s     On  |   %s Off | %20s |\n", gpu->index, gpu->product->name, device->pci_bus_id,
            ecc);
    fprintf(out, "| %3s  %3dC    P%-2u         %5uW / %4uW | %22s | %7s      Default |\n", fan, device->temperature_c,
            device->performance_state, (device->power_mw + 500) / 1000, (device->power_limit_mw + 500) / 1000, memory,
            use);
    fprintf(out, "|                                         |                        | %20s |\n",
            !gpu->product->mig    ? "N/A"
            : device->mig_enabled ? "Enabled"
                                  : "Disabled");
    fputs(ROWS, out);
}

/* ---------------------------------------------------------------------------------------------------- MIG instances */

static const char MIG_END[] =
    "+------------------+----------------------------------+-----------+-----------------------+\n";

static void mig_heading(FILE *out) {
    fputc('\n', out);
    fputs(WIDE, out);
    fprintf(out, "| %-87s |\n", "MIG devices:");
    fputs(MIG_END, out);
    fputs(
        "| GPU  GI  CI  MIG |                     Memory-Usage |        Vol|        Shared         |\n"
        "|      ID  ID  Dev |                       BAR1-Usage | SM     Unc| CE ENC  DEC  OFA  JPG |\n"
        "|                  |                                  |        ECC|                       |\n"
        "|==================+==================================+===========+=======================|\n",
        out);
}

static void mig_rows(FILE *out, const struct smi_gpu *gpu, const struct gy_mig *mig, unsigned index) {
    static const struct gy_mig_profile UNKNOWN;
    const struct gy_mig_profile *profile =
        mig->profile >= 0 && mig->profile < GY_MIG_PROFILES ? &gpu->product->mig_profiles[mig->profile] : &UNKNOWN;
    char memory[64];
    snprintf(memory, sizeof memory, "%7lluMiB / %6lluMiB", smi_mib(mig->memory_used_bytes),
             smi_mib(mig->memory_total_bytes));
    fprintf(out, "| %2u  %3u  %2u  %2u  | %32s | %-3u     0 |%3u %3u  %3u  %3u  %3u |\n", gpu->index, mig->gpu_instance,
            mig->compute_instance, index, memory, mig->multiprocessors, profile->copy_engines, profile->encoders,
            profile->decoders, profile->ofas, profile->jpegs);
    snprintf(memory, sizeof memory, "%7uMiB / %6lluMiB", 1, smi_mib(gpu->product->bar1_bytes));
    fprintf(out, "|                  | %32s |           |                       |\n", memory);
    fputs(MIG_END, out);
}

static void mig_table(struct smi *smi) {
    int begun = 0;
    for (unsigned i = 0; i < smi->count; i++) {
        if (!smi->gpus[i].device->mig_enabled) continue;
        struct gy_span span = gy_migs_of(&smi->reading, smi_position(smi, &smi->gpus[i]));
        if (!begun++) mig_heading(smi->out);
        if (span.first == span.end) fprintf(smi->out, "|  %-86s |\n%s", "No MIG devices found", WIDE);
        for (uint32_t m = span.first, index = 0; m < span.end; m++)
            if (smi_shows_mig(smi, m)) mig_rows(smi->out, &smi->gpus[i], &smi->reading.migs[m], index++);
    }
}

/* -------------------------------------------------------------------------------------------------------- processes */

static void instance_text(char *out, size_t size, int32_t id) {
    if (id == GY_NONE) snprintf(out, size, "N/A");
    else snprintf(out, size, "%d", id);
}

/* A name too long keeps its end, which says more than its beginning. */
static void short_name(char *out, size_t size, const char *name) {
    size_t length = strlen(name);
    if (length < size) snprintf(out, size, "%s", name);
    else snprintf(out, size, "...%s", name + length - (size - 4));
}

static void process_row(FILE *out, const struct smi_gpu *gpu, const struct gy_process *process) {
    char gi[16], ci[16], name[36], memory[24];
    instance_text(gi, sizeof gi, process->gpu_instance);
    instance_text(ci, sizeof ci, process->compute_instance);
    short_name(name, sizeof name, process->name);
    snprintf(memory, sizeof memory, "%lluMiB", smi_mib(process->memory_bytes));
    fprintf(out, "| %4u %5s %4s %15u %5s%c   %-35s %10s |\n", gpu->index, gi, ci, process->pid,
            process->kind == 'M' ? "M+" : "", process->kind == 'M' ? 'C' : (char)process->kind, name, memory);
}

static void process_table(struct smi *smi) {
    fprintf(smi->out, "\n%s| %-87s |\n", WIDE, "Processes:");
    fprintf(smi->out, "| %-87s |\n",
            " GPU   GI   CI              PID   Type   Process name                        GPU Memory");
    fprintf(smi->out, "| %-87s |\n",
            "       ID   ID                                                               Usage");
    fputs("|=========================================================================================|\n", smi->out);
    unsigned found = 0;
    for (unsigned i = 0; i < smi->count; i++) {
        struct gy_span span;
        found += smi_processes(smi, &smi->gpus[i], &span);
        for (uint32_t p = span.first; p < span.end; p++)
            if (smi_shows_process(smi, &smi->gpus[i], p))
                process_row(smi->out, &smi->gpus[i], &smi->reading.processes[p]);
    }
    if (!found) fprintf(smi->out, "| %-87s |\n", " No running processes found");
    fputs(WIDE, smi->out);
}

void smi_table(struct smi *smi) {
    heading(smi);
    for (unsigned i = 0; i < smi->count; i++) gpu_rows(smi->out, &smi->gpus[i]);
    mig_table(smi);
    process_table(smi);
}

void smi_list(struct smi *smi) {
    for (unsigned i = 0; i < smi->count; i++) {
        const struct smi_gpu *gpu = &smi->gpus[i];
        fprintf(smi->out, "GPU %u: %s (UUID: %s)\n", gpu->index, gpu->product->name, gpu->device->uuid);
        struct gy_span span = gy_migs_of(&smi->reading, smi_position(smi, gpu));
        for (uint32_t m = span.first, index = 0; m < span.end; m++) {
            const struct gy_mig *mig = &smi->reading.migs[m];
            if (smi_shows_mig(smi, m))
                fprintf(smi->out, "  MIG %-12s Device %2u: (UUID: %s)\n", mig->profile_name, index++, mig->uuid);
        }
    }
}
