/* The command line of nvidia-smi. */
#include "smi.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum mode { TABLE, LIST, REPORT, QUERY_GPUS, QUERY_APPS, DEVICE_MONITOR, PROCESS_MONITOR, TOPOLOGY, CHANGE };

struct options {
    enum mode mode;
    const char *ids, *fields, *format, *file, *display, *change;
    int xml;
    long interval_ms; /* Zero: once. */
    long rounds;      /* Zero: for ever, when there is an interval. */
};

static const char HELP[] =
    "NVIDIA System Management Interface of a gpuyard fake machine\n\n"
    "nvidia-smi [OPTION1 [ARG1]] [OPTION2 [ARG2]] ...\n\n"
    "    -h,   --help                Print this and exit.\n"
    "          --version             Print the versions of driver and CUDA.\n\n"
    "  LIST OPTIONS:\n"
    "    -L,   --list-gpus           Display the GPUs of this machine.\n\n"
    "  SUMMARY OPTIONS: <no arguments>  Show a summary of the GPUs.\n"
    "    [plus any of]\n"
    "    -i,   --id=                 Only these GPUs: index, UUID, serial or bus id, several with commas.\n"
    "    -f,   --filename=           Write to a file instead of the terminal.\n"
    "    -l,   --loop=               Repeat every so many seconds (5 when none are given) until Ctrl+C.\n"
    "    -lms, --loop-ms=            Repeat every so many milliseconds until Ctrl+C.\n\n"
    "  QUERY OPTIONS:\n"
    "    -q,   --query               Everything about the GPUs.\n"
    "    [plus any of]\n"
    "    -x,   --xml-format          As XML.\n"
    "    -d,   --display=            Only some of it: MEMORY, UTILIZATION, ECC, TEMPERATURE, POWER, CLOCK, COMPUTE,\n"
    "                                PIDS, PERFORMANCE, ROW_REMAPPER; several with commas.\n"
    "    -i, -f, -l, -lms            As above.\n\n"
    "  SELECTIVE QUERY OPTIONS:\n"
    "    --query-gpu=                Some fields of each GPU; --help-query-gpu lists them.\n"
    "    --query-compute-apps=       Some fields of each process; --help-query-compute-apps lists them.\n"
    "    [mandatory]\n"
    "    --format=                   csv[,noheader][,nounits]\n"
    "    [plus any of]\n"
    "    -i, -f, -l, -lms            As above.\n\n"
    "    nvidia-smi --query-gpu=index,name,memory.used --format=csv,noheader\n\n"
    "  MONITORS:\n"
    "    dmon [-c N] [-d SECONDS]    One line a GPU, again and again.\n"
    "    pmon [-c N] [-d SECONDS]    One line a process, again and again.\n"
    "    topo -m                     How the GPUs are connected.\n\n"
    "The state is read from $GPUYARD_FAKE_STATE (or /run/gpuyard-fake); NVIDIA_VISIBLE_DEVICES chooses what is seen.\n";

static int bad_option(const char *option) {
    printf("Option %s is not recognized. Please run 'nvidia-smi -h'.\n\n", option);
    return EXIT_BAD_ARGUMENT;
}

static int bad_combination(void) {
    printf("Invalid combination of input arguments. Please run 'nvidia-smi -h' for help.\n\n");
    return EXIT_BAD_ARGUMENT;
}

/* ------------------------------------------------------------------------------------------------- reading options */

/* An option with a value: "-i 0", "--id=0" or "--id 0". */
struct option {
    const char *shorts, *longs;
};

static const char *value_of(struct option option, int count, char **words, int *at) {
    const char *word = words[*at];
    size_t length = strlen(option.longs);
    if (!strncmp(word, option.longs, length) && word[length] == '=') return word + length + 1;
    if (strcmp(word, option.shorts) && strcmp(word, option.longs)) return NULL;
    if (*at + 1 >= count) return "";
    return words[++*at];
}

static int is(const char *word, const char *shorts, const char *longs) {
    return !strcmp(word, shorts) || !strcmp(word, longs);
}

static int whole_number(const char *text, long *number) {
    char *end;
    errno = 0;
    *number = strtol(text, &end, 10);
    return *text && !*end && !errno && *number > 0;
}

/* -l may stand without its number. */
static int loop_option(struct options *options, int count, char **words, int *at) {
    const char *word = words[*at];
    long number = 5;
    int seconds = is(word, "-l", "--loop") || !strncmp(word, "--loop=", 7);
    int millis = is(word, "-lms", "--loop-ms") || !strncmp(word, "--loop-ms=", 10);
    if (!seconds && !millis) return 0;
    const char *text = strchr(word, '=');
    if (text) text++;
    else if (*at + 1 < count && words[*at + 1][0] != '-') text = words[++*at];
    if (text && !whole_number(text, &number)) return -1;
    options->interval_ms = seconds ? number * 1000 : number;
    return 1;
}

static const char *const CHANGES[] = {"-pm", "--persistence-mode", "-e", "--ecc-config", "-c", "--compute-mode", "-pl",
                                      "--power-limit", "-ac", "--applications-clocks", "-lgc", "--lock-gpu-clocks",
                                      "-lmc", "--lock-memory-clocks", "-mig", "--multi-instance-gpu", "-p",
                                      "--reset-ecc-errors", "-am", "--accounting-mode"};
static const char *const BARE_CHANGES[] = {"-r", "--gpu-reset", "-rac", "--reset-applications-clocks", "-rgc",
                                           "--reset-gpu-clocks"};

static int change_option(struct options *options, int count, char **words, int *at) {
    for (size_t i = 0; i < sizeof BARE_CHANGES / sizeof *BARE_CHANGES; i++)
        if (!strcmp(words[*at], BARE_CHANGES[i])) options->change = words[*at];
    for (size_t i = 0; i < sizeof CHANGES / sizeof *CHANGES; i++) {
        const char *value = value_of((struct option){CHANGES[i], CHANGES[i]}, count, words, at);
        if (value) options->change = CHANGES[i];
        if (value) break;
    }
    if (options->change) options->mode = CHANGE;
    return options->change != NULL;
}

static int mode_option(struct options *options, const char *word) {
    if (is(word, "-L", "--list-gpus")) options->mode = LIST;
    else if (is(word, "-q", "--query")) options->mode = REPORT;
    else if (is(word, "-x", "--xml-format")) options->xml = 1;
    else return 0;
    return 1;
}

static int text_option(struct options *options, int count, char **words, int *at) {
    const struct {
        struct option option;
        const char **place;
        int mode;
    } known[] = {
        {{"-i", "--id"}, &options->ids, -1},
        {{"-f", "--filename"}, &options->file, -1},
        {{"-d", "--display"}, &options->display, -1},
        {{"--format", "--format"}, &options->format, -1},
        {{"--query-gpu", "--query-gpu"}, &options->fields, QUERY_GPUS},
        {{"--query-compute-apps", "--query-compute-apps"}, &options->fields, QUERY_APPS},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        const char *value = value_of(known[i].option, count, words, at);
        if (!value) continue;
        *known[i].place = value;
        if (known[i].mode >= 0) options->mode = (enum mode)known[i].mode;
        return 1;
    }
    return 0;
}

/* Zero, or the exit code. */
static int read_options(struct options *options, int count, char **words) {
    for (int at = 1; at < count; at++) {
        if (mode_option(options, words[at]) || text_option(options, count, words, &at)) continue;
        int loop = loop_option(options, count, words, &at);
        if (loop < 0) return bad_combination();
        if (loop || change_option(options, count, words, &at)) continue;
        return bad_option(words[at]);
    }
    int queries = options->mode == QUERY_GPUS || options->mode == QUERY_APPS;
    if (queries != (options->format != NULL) || (options->xml && options->mode != REPORT)) return bad_combination();
    if (options->display && options->mode != REPORT) return bad_combination();
    return 0;
}

static int read_monitor(struct options *options, int count, char **words) {
    options->mode = !strcmp(words[1], "dmon") ? DEVICE_MONITOR : PROCESS_MONITOR;
    options->interval_ms = 1000;
    for (int at = 2; at < count; at++) {
        const char *value;
        long number;
        if ((value = value_of((struct option){"-c", "--count"}, count, words, &at))) {
            if (!whole_number(value, &options->rounds)) return bad_combination();
        } else if ((value = value_of((struct option){"-d", "--delay"}, count, words, &at))) {
            if (!whole_number(value, &number)) return bad_combination();
            options->interval_ms = number * 1000;
        } else if ((value = value_of((struct option){"-i", "--id"}, count, words, &at))) {
            options->ids = value;
        } else if (!value_of((struct option){"-s", "--select"}, count, words, &at)) {
            return bad_option(words[at]);
        }
    }
    return 0;
}

static int read_format(const char *text, struct csv *csv) {
    int csv_seen = 0;
    *csv = (struct csv){1, 1};
    while (*text) {
        text += strspn(text, ", ");
        size_t length = strcspn(text, ", ");
        if (!length) break;
        if (length == 3 && !memcmp(text, "csv", 3)) csv_seen = 1;
        else if (length == 8 && !memcmp(text, "noheader", 8)) csv->header = 0;
        else if (length == 7 && !memcmp(text, "nounits", 7)) csv->units = 0;
        else return 0;
        text += length;
    }
    return csv_seen;
}

/* ---------------------------------------------------------------------------------------------------------- running */

static enum exit_code change(struct smi *smi, const struct options *options) {
    if (is(options->change, "-pm", "--persistence-mode")) {
        for (unsigned i = 0; i < smi->count; i++)
            fprintf(smi->out, "Persistence mode is already Enabled for GPU %s.\n", smi->gpus[i].device->pci_bus_id);
        fputs("All done.\n", smi->out);
        return EXIT_OK;
    }
    for (unsigned i = 0; i < smi->count; i++)
        fprintf(smi->out, "Option %s is not supported for GPU %s.\n", options->change, smi->gpus[i].device->pci_bus_id);
    fputs("Treating as warning and moving on.\nAll done.\n", smi->out);
    return EXIT_NOT_SUPPORTED;
}

static enum exit_code show(struct smi *smi, const struct options *options, long round, struct csv csv, unsigned display) {
    if (round > 0) csv.header = 0;
    switch (options->mode) {
        case LIST: smi_list(smi); return EXIT_OK;
        case REPORT: smi_report(smi, options->xml, display); return EXIT_OK;
        case QUERY_GPUS: return smi_query_gpus(smi, options->fields, csv);
        case QUERY_APPS: return smi_query_apps(smi, options->fields, csv);
        case DEVICE_MONITOR: smi_device_monitor(smi, round % 20 == 0); return EXIT_OK;
        case PROCESS_MONITOR: smi_process_monitor(smi, round % 20 == 0); return EXIT_OK;
        case TOPOLOGY: smi_topology(smi); return EXIT_OK;
        case CHANGE: return change(smi, options);
        default: smi_table(smi); return EXIT_OK;
    }
}

static void sleep_ms(long ms) {
    struct timespec time = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&time, NULL);
}

static int run(const struct options *options) {
    struct smi smi = {.out = stdout};
    struct csv csv = {1, 1};
    int bad = 0;
    unsigned display = options->display ? smi_display(options->display, &bad) : 0;
    if (bad || (options->format && !read_format(options->format, &csv))) return bad_combination();
    if (options->file && !(smi.out = fopen(options->file, "w"))) {
        printf("Unable to open file %s for writing.\n", options->file);
        return EXIT_BAD_ARGUMENT;
    }
    smi.complaints = options->xml ? stderr : smi.out;
    enum exit_code code = EXIT_OK;
    for (long round = 0; code == EXIT_OK && (!options->rounds || round < options->rounds); round++) {
        if (round) sleep_ms(options->interval_ms);
        code = smi_take(&smi, options->ids);
        if (code == EXIT_OK) code = show(&smi, options, round, csv, display);
        if (fflush(smi.out)) return EXIT_OTHER; /* Whoever read this has gone. */
        if (!options->interval_ms) break;
    }
    return code == EXIT_OK && smi.lost ? EXIT_LOST : code;
}

static int print_version(void) {
    struct smi smi = {.out = stdout, .complaints = stderr};
    enum exit_code code = smi_take(&smi, NULL);
    if (code != EXIT_OK && code != EXIT_NOT_FOUND && code != EXIT_LOST) return code;
    const struct gy_machine *machine = smi.reading.machine;
    printf("NVIDIA-SMI version  : %s\nNVML version        : %.*s\nDRIVER version      : %s\nCUDA Version        : %u.%u\n",
           machine->driver_version, (int)strcspn(machine->driver_version, "."), machine->driver_version,
           machine->driver_version, machine->cuda_major, machine->cuda_minor);
    return EXIT_OK;
}

int main(int count, char **words) {
    struct options options = {.mode = TABLE};
    int code = 0;
    for (int i = 1; i < count; i++) {
        if (is(words[i], "-h", "--help")) return fputs(HELP, stdout) < 0;
        if (!strcmp(words[i], "--version")) return print_version();
        if (!strcmp(words[i], "--help-query-gpu")) return smi_help_query_gpus(stdout), EXIT_OK;
        if (!strcmp(words[i], "--help-query-compute-apps")) return smi_help_query_apps(stdout), EXIT_OK;
    }
    if (count > 1 && (!strcmp(words[1], "dmon") || !strcmp(words[1], "pmon"))) code = read_monitor(&options, count, words);
    else if (count > 1 && !strcmp(words[1], "topo")) options.mode = TOPOLOGY;
    else code = read_options(&options, count, words);
    return code ? code : run(&options);
}
