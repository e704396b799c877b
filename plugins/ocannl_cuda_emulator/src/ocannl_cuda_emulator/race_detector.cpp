// Finds races: two accesses to one byte, at least one of which writes, by threads of a launch that
// nothing orders. Barriers order the threads of a block, barriers and shuffles of warps those of a
// warp, and nothing orders threads of different blocks. Atomic operations race only with others.
//
// The compiler calls the functions `__tsan_...` below before every access. Memory is described in
// pages; for each cell of a page, of the size of the smallest access, there are the last write and
// two reads of different threads. Two suffice: a write races with one of them if with any.
#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <string>
#include <unordered_map>
#include <vector>

struct uint3 { unsigned x, y, z; };
struct dim3 { unsigned x, y, z; };
extern "C" struct CudaRaceLaunch {
  const char *kernel, *names;
  const char *buffer;
  size_t size;
  const unsigned *thread;
  const uint3 *block;
  const dim3 *grid;
  const char *shared_start, *shared_stop;
  char *const *stacks;
  size_t stack_bytes;
  char *message;
  size_t message_size;
};

namespace {

enum : unsigned { page_bits = 12, most_threads = 1024, warp = 32 };

struct Access {
  uint32_t launch = 0, block = 0, epoch = 0, warp_epoch = 0;
  uint16_t thread = 0;
  bool is_atomic = false;
  const void *place = nullptr;
};
struct Record { Access write, reads[2]; };
struct Page {
  unsigned shift = 3;  // the logarithm of the size of a cell
  std::vector<Record> records = std::vector<Record>(1u << (page_bits - 3));
};

CudaRaceLaunch now;
uint32_t launch_number;
uint32_t epochs[most_threads], warp_epochs[most_threads];
uint32_t epochs_of_block;
int atomic_depth;
const char *host_stack, *host_stack_end, *image_start, *image_end, *failure_flag;
std::unordered_map<uintptr_t, Page> pages;
uintptr_t last_number;
Page *last_page;

bool is_inside(const char *address, const char *start, const char *end) { return address >= start && address < end; }

// ----- names -------------------------------------------------------------------------------------

// The last part of a mangled name of a variable in a function.
std::string plain_name(const char *name) {
  std::string found = name;
  const char *part = strncmp(name, "_ZZ", 3) ? nullptr : strchr(name, 'E');
  if (part) {
    char *start;
    const unsigned long size = strtoul(part + 1, &start, 10);
    if (size && size <= strlen(start)) found.assign(start, size);
  }
  return found;
}

// The variable of this object at an address, from its table of symbols, and the place in it.
std::string variable_at(const char *address, size_t *offset) {
  Dl_info info;
  if (!dladdr((const void *)variable_at, &info)) return "shared memory";
  FILE *file = fopen(info.dli_fname, "rb");
  std::vector<char> bytes;
  char buffer[4096];
  for (size_t count; file && (count = fread(buffer, 1, sizeof buffer, file));) bytes.insert(bytes.end(), buffer, buffer + count);
  if (file) fclose(file);
  if (bytes.size() < sizeof(Elf64_Ehdr)) return "shared memory";
  const Elf64_Ehdr *header = (const Elf64_Ehdr *)bytes.data();
  const Elf64_Shdr *sections = (const Elf64_Shdr *)(bytes.data() + header->e_shoff);
  const uintptr_t wanted = address - (const char *)info.dli_fbase;
  for (unsigned k = 0; k < header->e_shnum; ++k) {
    if (sections[k].sh_type != SHT_SYMTAB) continue;
    const Elf64_Sym *symbols = (const Elf64_Sym *)(bytes.data() + sections[k].sh_offset);
    const char *names = bytes.data() + sections[sections[k].sh_link].sh_offset;
    for (size_t j = 0; j < sections[k].sh_size / sizeof *symbols; ++j)
      if (ELF64_ST_TYPE(symbols[j].st_info) == STT_OBJECT && wanted - symbols[j].st_value < symbols[j].st_size) {
        *offset = wanted - symbols[j].st_value;
        return plain_name(names + symbols[j].st_name);
      }
  }
  return "shared memory";
}

// The parameter whose memory an address is most probably in: the nearest one before it.
std::string parameter_at(const char *address, size_t *offset) {
  std::string names = now.names, found = "global memory", name;
  size_t place = 0;
  const char *nearest = nullptr;
  for (size_t end; place + 8 <= now.size && !names.empty(); place += 8) {
    end = names.find(',');
    name = names.substr(0, end);
    names = end == std::string::npos ? "" : names.substr(end + 1);
    const char *start;
    memcpy(&start, now.buffer + place, sizeof start);
    if (name[0] == '*' && start <= address && start >= nearest) nearest = start, found = name.substr(1);
  }
  *offset = nearest ? address - nearest : 0;
  return found;
}

// The line of the kernel, also for accesses in functions of the emulation that are inlined there.
std::string line_of(const void *place) {
  Dl_info info;
  char command[512], line[256], text[256] = "";
  if (!place || !dladdr(place, &info)) return "";
  const uintptr_t offset = (const char *)place - (const char *)info.dli_fbase - 1;
  snprintf(command, sizeof command, "addr2line -i -s -e %s 0x%zx 2>/dev/null", info.dli_fname, (size_t)offset);
  FILE *pipe = popen(command, "r");
  while (pipe && fgets(line, sizeof line, pipe))
    if (!*text || strstr(text, ".hpp")) snprintf(text, sizeof text, "%.*s", (int)strcspn(line, " \n"), line);
  if (pipe) pclose(pipe);
  return *text && *text != '?' ? std::string(" (") + text + ")" : "";
}

std::string side(const Access &access, const char *verb) {
  char text[128];
  const unsigned width = now.grid->x;
  snprintf(text, sizeof text, "thread %u of block %u %s", access.thread, access.block, verb);
  return text + line_of(access.place);
}

void report(const char *address, size_t size, const Access &first, bool first_writes, const Access &second, bool second_writes) {
  if (now.message[0]) return;  // the first race
  size_t offset = 0;
  const bool is_shared = is_inside(address, now.shared_start, now.shared_stop);
  const std::string name = is_shared ? variable_at(address, &offset) : parameter_at(address, &offset);
  const std::string text = std::string("race on ") + (is_shared ? "shared " : "") + name + "[" + std::to_string(offset / size) +
                           "]: " + side(first, first_writes ? "writes" : "reads") + ", and " +
                           side(second, second_writes ? "writes" : "reads");
  snprintf(now.message, now.message_size, "%s", text.c_str());
}

// ----- accesses ----------------------------------------------------------------------------------

bool is_unordered(const Access &before, const Access &after) {
  if (before.launch != after.launch) return false;
  if (before.is_atomic && after.is_atomic) return false;
  if (before.block != after.block) return true;
  if (before.thread == after.thread || before.epoch < after.epoch) return false;
  return before.thread / warp != after.thread / warp || before.warp_epoch >= after.warp_epoch;
}

// Lets the cells of a page be as small as an access.
void refine(Page &page, unsigned shift) {
  std::vector<Record> finer(1u << (page_bits - shift));
  for (size_t k = 0; k < finer.size(); ++k) finer[k] = page.records[k >> (page.shift - shift)];
  page.records.swap(finer);
  page.shift = shift;
}

void visit(Record &record, const char *address, size_t size, bool writes, const Access &access) {
  if (is_unordered(record.write, access)) report(address, size, record.write, true, access, writes);
  if (!writes) {
    for (Access &read : record.reads)
      if (!is_unordered(read, access) || &read == &record.reads[1]) {
        read = access;
        return;
      }
  }
  for (Access &read : record.reads) {
    if (is_unordered(read, access)) report(address, size, read, false, access, true);
    read = Access();
  }
  record.write = access;
}

void access(void *given, size_t size, bool writes, const void *place) {
  const char *address = (const char *)given;
  const bool is_shared = is_inside(address, now.shared_start, now.shared_stop);
  if (!launch_number || now.message[0]) return;
  if (!is_shared && (is_inside(address, image_start, image_end) || is_inside(address, host_stack, host_stack_end))) return;
  if (address == failure_flag) return;  // every thread that finds a failure stores the same
  if (*now.stacks && is_inside(address, *now.stacks, *now.stacks + now.stack_bytes)) return;
  const unsigned thread = *now.thread;
  Access own;
  own.launch = launch_number;
  own.block = now.block->x + now.grid->x * (now.block->y + now.grid->y * now.block->z);
  own.thread = thread, own.place = place, own.is_atomic = atomic_depth > 0;
  own.epoch = epochs[thread], own.warp_epoch = warp_epochs[thread];
  // blocks run one after the other, in the same shared memory
  if (is_shared) own.launch = launch_number * 2654435761u ^ own.block;
  const unsigned fits = ((uintptr_t)address | size) & 7;
  const unsigned shift = fits == 0 ? 3 : fits == 4 ? 2 : fits & 1 ? 0 : 1;
  for (size_t done = 0; done < size;) {
    const uintptr_t number = (uintptr_t)(address + done) >> page_bits;
    if (!last_page || number != last_number) last_number = number, last_page = &pages[number];
    Page &page = *last_page;
    if (page.shift > shift) refine(page, shift);
    const size_t cell = ((uintptr_t)(address + done) & ((1u << page_bits) - 1)) >> page.shift;
    visit(page.records[cell], address + done, size, writes, own);
    done += (size_t)1 << page.shift;
  }
}

// Finds the memory of this object, whose variables only the emulation uses.
int find_image(dl_phdr_info *info, size_t, void *) {
  const char *base = (const char *)info->dlpi_addr, *own = (const char *)find_image, *end = base;
  for (int k = 0; k < info->dlpi_phnum; ++k) {
    const ElfW(Phdr) &part = info->dlpi_phdr[k];
    if (part.p_type == PT_LOAD && base + part.p_vaddr + part.p_memsz > end) end = base + part.p_vaddr + part.p_memsz;
  }
  if (!is_inside(own, base, end)) return 0;
  image_start = base, image_end = end;
  return 1;
}

}  // namespace

extern "C" {

void cuda_race_start(const CudaRaceLaunch *launch) {
  now = *launch;
  now.message[0] = 0;
  ++launch_number;
  memset(epochs, 0, sizeof epochs);
  memset(warp_epochs, 0, sizeof warp_epochs);
  pthread_attr_t attributes;
  void *start;
  size_t size;
  pthread_getattr_np(pthread_self(), &attributes);
  pthread_attr_getstack(&attributes, &start, &size);
  pthread_attr_destroy(&attributes);
  host_stack = (const char *)start, host_stack_end = host_stack + size;
  if (!image_start) dl_iterate_phdr(find_image, nullptr);
  const char *flag = "";
  size_t place = 0;
  for (const char *name = now.names; name; name = strchr(name + 1, ','), place += 8)
    if (!strncmp(name + (*name == ','), "*failed", 7)) memcpy(&flag, now.buffer + place, sizeof flag);
  failure_flag = flag;
  // descriptions of memory that is freed by now need not be kept
  if (pages.size() > 4096) pages.clear();
  last_page = nullptr;
}
void cuda_race_block_barrier() { ++epochs[*now.thread]; }
void cuda_race_warp_barrier() { ++warp_epochs[*now.thread]; }
void cuda_race_range(const void *start, size_t size, int writes) {
  access((void *)start, size, writes, __builtin_return_address(0));
}
void cuda_race_atomic(int change) { atomic_depth += change; }

#define PLACE __builtin_return_address(0)
#define ACCESSES(size)                                                              \
  void __tsan_read##size(void *address) { access(address, size, false, PLACE); }            \
  void __tsan_write##size(void *address) { access(address, size, true, PLACE); }            \
  void __tsan_unaligned_read##size(void *address) { access(address, size, false, PLACE); }  \
  void __tsan_unaligned_write##size(void *address) { access(address, size, true, PLACE); }
ACCESSES(1)
ACCESSES(2)
ACCESSES(4)
ACCESSES(8)
ACCESSES(16)
void __tsan_read_range(void *address, size_t size) { access(address, size, false, PLACE); }
void __tsan_write_range(void *address, size_t size) { access(address, size, true, PLACE); }
void __tsan_func_entry(void *caller) {}
void __tsan_func_exit(void) {}
void __tsan_init(void) {}
}
