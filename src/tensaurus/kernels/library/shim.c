/* Makes kernels custom operators of onnxruntime.

   It includes kernels.inc, which shared_library.py writes: the kernels, their tensors, and the processor features
   that they require. The parts of onnxruntime's C API and of Halide's runtime that are used are declared here.
   onnxruntime's table of functions only ever grows: a function keeps its position in the table. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef __linux__
#include <sys/mman.h>
#endif

/* ------------------------------------------------------------------------------ of onnxruntime's C API */

enum { OLDEST = 20, CUSTOM_OP_VERSION = 17 };  /* onnxruntime 1.20; the custom operators of 1.17 */
enum { FAIL = 1, INVALID_ARGUMENT = 2 };

typedef struct Status Status;
typedef struct Value Value;
typedef struct Domain Domain;
typedef struct SessionOptions SessionOptions;
typedef struct Context Context;
typedef struct ShapeContext ShapeContext;
typedef struct TensorInfo TensorInfo;
typedef struct CustomOp CustomOp;

typedef struct Api {
    Status *(*CreateStatus)(int code, const char *message);
    void *from_1[25];
    Status *(*CreateCustomOpDomain)(const char *name, Domain **made);
    Status *(*CustomOpDomain_Add)(Domain *domain, const CustomOp *op);
    Status *(*AddCustomOpDomain)(SessionOptions *options, Domain *domain);
    void *from_29[22];
    Status *(*GetTensorMutableData)(Value *value, void **data);
    void *from_52[5];
    Status *(*CreateTensorTypeAndShapeInfo)(TensorInfo **made);
    Status *(*SetTensorElementType)(TensorInfo *info, int element);
    Status *(*SetDimensions)(TensorInfo *info, const int64_t *sizes, size_t rank);
    void *from_60[1];
    Status *(*GetDimensionsCount)(const TensorInfo *info, size_t *rank);
    Status *(*GetDimensions)(const TensorInfo *info, int64_t *sizes, size_t rank);
    void *from_63[2];
    Status *(*GetTensorTypeAndShape)(const Value *value, TensorInfo **made);
    void *from_66[24];
    Status *(*KernelContext_GetInput)(const Context *context, size_t place, const Value **value);
    Status *(*KernelContext_GetOutput)(Context *context, size_t place, const int64_t *sizes, size_t rank,
                                       Value **value);
    void *from_92[1];
    void (*ReleaseStatus)(Status *status);
    void *from_94[5];
    void (*ReleaseTensorTypeAndShapeInfo)(TensorInfo *info);
    void *from_100[170];
    Status *(*ShapeInferContext_SetOutputTypeShape)(const ShapeContext *context, size_t place,
                                                    const TensorInfo *info);
    Status *(*SetSymbolicDimensions)(TensorInfo *info, const char **names, size_t rank);
    void *from_272[2];
    Status *(*KernelContext_ParallelFor)(const Context *context, void (*task)(void *data, size_t number),
                                         size_t count, size_t batches, void *data);
} Api;

#define PLACE(entry, number) \
    _Static_assert(offsetof(Api, entry) == (number) * sizeof(void *), "the place of " #entry)
PLACE(CreateCustomOpDomain, 26);
PLACE(GetTensorMutableData, 51);
PLACE(CreateTensorTypeAndShapeInfo, 57);
PLACE(GetDimensionsCount, 61);
PLACE(GetTensorTypeAndShape, 65);
PLACE(KernelContext_GetInput, 90);
PLACE(ReleaseStatus, 93);
PLACE(ReleaseTensorTypeAndShapeInfo, 99);
PLACE(ShapeInferContext_SetOutputTypeShape, 270);
PLACE(KernelContext_ParallelFor, 274);

typedef struct ApiBase {
    const Api *(*GetApi)(uint32_t version);
    const char *(*GetVersionString)(void);
} ApiBase;

struct CustomOp {
    uint32_t version;
    void *(*CreateKernel)(const CustomOp *op, const Api *api, const void *info);
    const char *(*GetName)(const CustomOp *op);
    const char *(*GetExecutionProviderType)(const CustomOp *op);
    int (*GetInputType)(const CustomOp *op, size_t place);
    size_t (*GetInputTypeCount)(const CustomOp *op);
    int (*GetOutputType)(const CustomOp *op, size_t place);
    size_t (*GetOutputTypeCount)(const CustomOp *op);
    void (*KernelCompute)(void *kernel, Context *context);
    void (*KernelDestroy)(void *kernel);
    int (*GetInputCharacteristic)(const CustomOp *op, size_t place);
    int (*GetOutputCharacteristic)(const CustomOp *op, size_t place);
    int (*GetInputMemoryType)(const CustomOp *op, size_t place);
    int (*GetVariadicInputMinArity)(const CustomOp *op);
    int (*GetVariadicInputHomogeneity)(const CustomOp *op);
    int (*GetVariadicOutputMinArity)(const CustomOp *op);
    int (*GetVariadicOutputHomogeneity)(const CustomOp *op);
    Status *(*CreateKernelV2)(const CustomOp *op, const Api *api, const void *info, void **kernel);
    Status *(*KernelComputeV2)(void *kernel, Context *context);
    Status *(*InferOutputShapeFn)(const CustomOp *op, ShapeContext *context);
    int (*GetStartVersion)(const CustomOp *op);
    int (*GetEndVersion)(const CustomOp *op);
};

/* --------------------------------------------------------------------------------- of Halide's runtime */

typedef struct Dimension {
    int32_t min, extent, stride;
    uint32_t flags;
} Dimension;

typedef struct Buffer {
    uint64_t device;
    const void *device_interface;
    uint8_t *host;
    uint64_t flags;
    struct {
        uint8_t code, bits;
        uint16_t lanes;
    } type;
    int32_t dimensions;
    Dimension *dim;
    void *padding;
} Buffer;

typedef int (*Task)(void *strand, int number, uint8_t *closure);

/* ------------------------------------------------------------------------------------------ the kernels */

typedef struct Tensor {
    int element;         /* of onnxruntime */
    uint8_t code, bits;  /* of Halide */
    int rank;
    int empty;
    const int64_t *sizes;
    Dimension *dimensions; /* the last axis first */
} Tensor;

typedef struct Kernel {
    const char *name;
    int inputs;
    const Tensor *tensors; /* of the inputs, then of the output */
    int (*run)(void *strand, Buffer *buffers);
    int flushing; /* whether subnormal numbers count as 0 */
} Kernel;

typedef struct Feature {
    const char *name;
    uint32_t leaf, part, reg, bit, saved; /* as in `CpuidBit` of cpu_features.py */
} Feature;

enum { WORDS = 480, MOST_RANK = 64 };

/* defines KERNELS, KERNEL_COUNT, MOST_TENSORS, FEATURES (the last one without a name) and DOMAIN_NAME */
#include "kernels.inc"

/* One run of a kernel. */
typedef struct Call {
    const Api *api;
    const Context *context;
    int flushing;
    unsigned before; /* the control register (MXCSR) of the calling thread before the run */
    atomic_int failed; /* set by the first failure, whose message is kept */
    char message[WORDS];
} Call;

typedef struct Block Block;

/* The part of a run that one thread computes; kernels pass it to every function that they call.

   Kernels do not check whether they got memory or whether a loop failed, so a function that fails must not
   return to them: it jumps to `end`. This is safe because a kernel owns nothing but the blocks of memory in
   `held`, which are freed after the jump. */
typedef struct Strand {
    Call *call;
    Block *held;
    jmp_buf end;
} Strand;

static Status *make_status(const Api *api, int code, const char *form, ...)
{
    char words[2 * WORDS];
    va_list rest;
    va_start(rest, form);
    vsnprintf(words, sizeof words, form, rest);
    va_end(rest);
    return api->CreateStatus(code, words);
}

static void fail(Call *call, const char *form, ...)
{
    if (atomic_exchange(&call->failed, 1))
        return;
    va_list rest;
    va_start(rest, form);
    vsnprintf(call->message, sizeof call->message, form, rest);
    va_end(rest);
}

static int has_failed(Call *call)
{
    return atomic_load_explicit(&call->failed, memory_order_relaxed);
}

/* ---------------------------------------------------------------------------------------- subnormal numbers */

/* Threads belong to the runtime: the mode in which the processor flushes subnormal numbers to 0 is set only while a
   kernel computes, and is reset when its task ends and while the runtime distributes a parallel loop. */
#ifdef __x86_64__
enum { FLUSH_TO_ZERO = 0x8000, DENORMALS_ARE_ZERO = 0x0040 };

static unsigned begin_flushing(const Call *call)
{
    unsigned before = __builtin_ia32_stmxcsr();
    if (call->flushing)
        __builtin_ia32_ldmxcsr(before | FLUSH_TO_ZERO | DENORMALS_ARE_ZERO);
    return before;
}

static void end_flushing(const Call *call, unsigned before)
{
    if (call->flushing)
        __builtin_ia32_ldmxcsr(before);
}
#else
static unsigned begin_flushing(const Call *call)
{
    (void)call;
    return 0;
}

static void end_flushing(const Call *call, unsigned before)
{
    (void)call;
    (void)before;
}
#endif

/* ------------------------------------------------------------------------------------------ scratch memory */

/* Large tensors and blocks ask for huge pages, as each small page costs a look-up: kernels that read 38 MB of weights
   took 5 to 15 % less time. Memory is the same, and where the system refuses, nothing changes. */
enum { HUGE_PAGE = 1 << 21, ADVISE_HUGE = 14 /* MADV_HUGEPAGE */, COLLAPSE = 25 /* MADV_COLLAPSE, Linux 6.1 */ };

static void ask_for_huge_pages(void *data, size_t bytes, int is_used)
{
#ifdef __linux__
    uintptr_t start = ((uintptr_t)data + HUGE_PAGE - 1) & ~(uintptr_t)(HUGE_PAGE - 1);
    uintptr_t end = ((uintptr_t)data + bytes) & ~(uintptr_t)(HUGE_PAGE - 1);
    if (start < end && !madvise((void *)start, end - start, ADVISE_HUGE) && is_used)
        madvise((void *)start, end - start, COLLAPSE);
#else
    (void)data, (void)bytes, (void)is_used;
#endif
}

/* Blocks come in four sizes from one power of two to the next. A returned block is kept for the thread that used it:
   what another thread wrote lies in the cache of another core, and would have to come from there. Once MUCH_KEPT
   bytes are kept, a thread that has no block of its own takes another thread's. */
enum { ALIGNMENT = 128, SMALLEST = 12 /* bits */, SIZES = 4 * 19 + 1 /* up to 2 GiB */ };
static const size_t MOST_KEPT = (size_t)1 << 30, MUCH_KEPT = (size_t)1 << 28; /* bytes */

struct Block {
    Block *before, *next; /* neighbours in the list of a strand's blocks, or (next) of kept blocks */
    const void *thread;   /* the thread that returned it */
    int size;
};

static _Thread_local char thread_mark; /* its address tells threads apart */

static Block *kept[SIZES];
static size_t bytes_kept;
static atomic_flag pool = ATOMIC_FLAG_INIT;

static void lock(void)
{
    while (atomic_flag_test_and_set_explicit(&pool, memory_order_acquire))
        ;
}

static void unlock(void)
{
    atomic_flag_clear_explicit(&pool, memory_order_release);
}

static size_t bytes_of(int size)
{
    return ((size_t)(4 + size % 4) << (SMALLEST + size / 4)) / 4;
}

static int size_for(size_t bytes)
{
    int size = 0;
    while (size < SIZES && bytes_of(size) < bytes)
        size++;
    return size;
}

static Block *take_block(size_t bytes)
{
    int size = size_for(bytes);
    if (size == SIZES)
        return NULL;
    lock();
    Block **place = &kept[size];
    while (*place && (*place)->thread != &thread_mark)
        place = &(*place)->next;
    if (!*place && bytes_kept > MUCH_KEPT)
        place = &kept[size];
    Block *block = *place;
    if (block) {
        *place = block->next;
        bytes_kept -= bytes_of(size);
    }
    unlock();
    if (!block) {
        void *fresh;
        size_t alignment = bytes_of(size) < HUGE_PAGE ? ALIGNMENT : HUGE_PAGE;
        if (posix_memalign(&fresh, alignment, bytes_of(size) + ALIGNMENT))
            return NULL;
        ask_for_huge_pages(fresh, bytes_of(size), 0);
        block = fresh;
        block->size = size;
    }
    return block;
}

static void return_block(Block *block)
{
    size_t bytes = bytes_of(block->size);
    block->thread = &thread_mark;
    lock();
    int keep = bytes_kept + bytes <= MOST_KEPT;
    if (keep) {
        block->next = kept[block->size];
        kept[block->size] = block;
        bytes_kept += bytes;
    }
    unlock();
    if (!keep)
        free(block);
}

void *halide_malloc(void *user, size_t bytes)
{
    Strand *own = user;
    Block *block = take_block(bytes);
    if (!block) {
        fail(own->call, "no memory for scratch of %zu bytes", bytes);
        longjmp(own->end, 1);
    }
    block->before = NULL;
    block->next = own->held;
    if (own->held)
        own->held->before = block;
    own->held = block;
    return (char *)block + ALIGNMENT;
}

void halide_free(void *user, void *memory)
{
    Strand *own = user;
    if (!memory)
        return;
    Block *block = (Block *)((char *)memory - ALIGNMENT);
    if (block->before)
        block->before->next = block->next;
    else
        own->held = block->next;
    if (block->next)
        block->next->before = block->before;
    return_block(block);
}

__attribute__((destructor)) static void empty_pool(void)
{
    lock();
    for (int size = 0; size < SIZES; size++)
        while (kept[size]) {
            Block *block = kept[size];
            kept[size] = block->next;
            free(block);
        }
    unlock();
}

/* ------------------------------------------------------------------------------------ Halide's parallel loops */

typedef struct Loop {
    Task task;
    Call *call;
    uint8_t *closure;
    int first;
} Loop;

static void free_held_blocks(Strand *own)
{
    while (own->held)
        halide_free(own, (char *)own->held + ALIGNMENT);
}

/* setjmp is called in a function of its own: locals of its caller keep their values after a jump. */
static void run_strand(Strand *own, const Loop *loop, int number)
{
    if (setjmp(own->end))
        free_held_blocks(own);
    else if (loop->task(own, number, loop->closure))
        fail(own->call, "it failed");
}

static void run_task(void *data, size_t number)
{
    const Loop *loop = data;
    if (has_failed(loop->call))
        return;
    Strand own;
    own.call = loop->call;
    own.held = NULL;
    unsigned before = begin_flushing(loop->call);
    run_strand(&own, loop, loop->first + (int)number);
    end_flushing(loop->call, before);
}

int halide_do_par_for(void *user, Task task, int first, int count, uint8_t *closure)
{
    Strand *own = user;
    if (count <= 1) {
        for (int number = first; number < first + count; number++)
            if (task(own, number, closure))
                return -1;
        return 0;
    }
    Call *call = own->call;
    Loop loop = {task, call, closure, first};
    unsigned within = begin_flushing(call); /* the mode is set already; this reads the register */
    end_flushing(call, call->before);
    Status *status = call->api->KernelContext_ParallelFor(call->context, run_task, (size_t)count, 0, &loop);
    end_flushing(call, within);
    if (status) {
        call->api->ReleaseStatus(status);
        fail(call, "the runtime refused a parallel loop");
    }
    if (has_failed(call))
        longjmp(own->end, 1);
    return 0;
}

/* ---------------------------------------------------------------------------------------- custom operators */

typedef struct Operator {
    CustomOp op;
    const Kernel *kernel;
} Operator;

typedef struct Instance {
    const Api *api;
    const Kernel *kernel;
    atomic_flag has_run;
} Instance;

static Operator operators[KERNEL_COUNT];
static Domain *domain;
static const Api *latest; /* for shape inference, to which onnxruntime passes no API */

static const Kernel *kernel_of(const CustomOp *op)
{
    return ((const Operator *)op)->kernel;
}

static const char *name_of(const CustomOp *op)
{
    return kernel_of(op)->name;
}

static const char *provider(const CustomOp *op)
{
    (void)op;
    return "CPUExecutionProvider";
}

static int input_type(const CustomOp *op, size_t place)
{
    return kernel_of(op)->tensors[place].element;
}

static size_t input_count(const CustomOp *op)
{
    return (size_t)kernel_of(op)->inputs;
}

static int output_type(const CustomOp *op, size_t place)
{
    (void)place;
    return kernel_of(op)->tensors[kernel_of(op)->inputs].element;
}

static size_t output_count(const CustomOp *op)
{
    (void)op;
    return 1;
}

static int default_memory(const CustomOp *op, size_t place) /* inputs and outputs are required, in the default memory */
{
    (void)op;
    (void)place;
    return 0;
}

static int return_one(const CustomOp *op)
{
    (void)op;
    return 1;
}

static int last_version(const CustomOp *op)
{
    (void)op;
    return INT32_MAX;
}

static Status *infer_shape(const CustomOp *op, ShapeContext *context)
{
    const Tensor *output = &kernel_of(op)->tensors[kernel_of(op)->inputs];
    const char *no_names[MOST_RANK];
    for (int place = 0; place < output->rank; place++)
        no_names[place] = "";
    TensorInfo *info;
    Status *status = latest->CreateTensorTypeAndShapeInfo(&info);
    if (status)
        return status;
    size_t rank = (size_t)output->rank;
    if (!(status = latest->SetTensorElementType(info, output->element)) &&
        !(status = latest->SetDimensions(info, output->sizes, rank)) &&
        !(status = latest->SetSymbolicDimensions(info, no_names, rank)))
        status = latest->ShapeInferContext_SetOutputTypeShape(context, 0, info);
    latest->ReleaseTensorTypeAndShapeInfo(info);
    return status;
}

static Status *create_kernel(const CustomOp *op, const Api *api, const void *info, void **made)
{
    (void)info;
    Instance *instance = malloc(sizeof *instance);
    if (!instance)
        return make_status(api, FAIL, "%s: out of memory", kernel_of(op)->name);
    *instance = (Instance){api, kernel_of(op), ATOMIC_FLAG_INIT};
    *made = instance;
    return NULL;
}

static char *shape_text(char *text, size_t length, const int64_t *sizes, size_t rank)
{
    size_t end = 0;
    text[0] = 0;
    for (size_t place = 0; place < rank && end < length; place++)
        end += (size_t)snprintf(text + end, length - end, place ? ", %lld" : "%lld", (long long)sizes[place]);
    return text;
}

/* Returns NULL where the value has the shape that the kernel was compiled for. */
static Status *check_shape(const Instance *own, int place, const Value *value)
{
    const Api *api = own->api;
    const Tensor *tensor = &own->kernel->tensors[place];
    TensorInfo *info;
    size_t rank = 0;
    int64_t sizes[MOST_RANK];
    Status *status = api->GetTensorTypeAndShape(value, &info);
    if (status)
        return status;
    if (!(status = api->GetDimensionsCount(info, &rank)) && rank <= MOST_RANK)
        status = api->GetDimensions(info, sizes, rank);
    api->ReleaseTensorTypeAndShapeInfo(info);
    if (status)
        return status;
    if (rank == (size_t)tensor->rank && !memcmp(sizes, tensor->sizes, rank * sizeof *sizes))
        return NULL;
    char found[WORDS / 2], wanted[WORDS / 2];
    return make_status(api, INVALID_ARGUMENT, "%s: its input %d has the shape [%s], the kernel was compiled for [%s]",
                   own->kernel->name, place,
                   shape_text(found, sizeof found, sizes, rank <= MOST_RANK ? rank : 0),
                   shape_text(wanted, sizeof wanted, tensor->sizes, (size_t)tensor->rank));
}

static Buffer buffer_of(const Tensor *tensor, void *data)
{
    static _Alignas(ALIGNMENT) char nothing[ALIGNMENT]; /* an empty tensor may have no address */
    Buffer made = {0};
    made.host = data ? data : nothing;
    made.type.code = tensor->code;
    made.type.bits = tensor->bits;
    made.type.lanes = 1;
    made.dimensions = tensor->rank;
    made.dim = tensor->dimensions;
    return made;
}

static size_t bytes_of_tensor(const Tensor *tensor)
{
    size_t count = (size_t)(tensor->bits + 7) / 8;
    for (int place = 0; place < tensor->rank; place++)
        count *= (size_t)tensor->sizes[place];
    return count;
}

static void run_kernel(Strand *own, const Kernel *kernel, Buffer *buffers)
{
    if (setjmp(own->end))
        free_held_blocks(own);
    else if (kernel->run(own, buffers))
        fail(own->call, "it failed");
}

static Status *compute(void *kernel, Context *context)
{
    Instance *own = kernel;
    const Api *api = own->api;
    const Tensor *tensors = own->kernel->tensors, *output = &tensors[own->kernel->inputs];
    int is_first = !atomic_flag_test_and_set(&own->has_run); /* weights stay where they are in later runs */
    Buffer buffers[MOST_TENSORS];
    void *data;
    Status *status;
    for (int place = 0; place < own->kernel->inputs; place++) {
        const Value *value;
        if ((status = api->KernelContext_GetInput(context, (size_t)place, &value)) ||
            (status = check_shape(own, place, value)) || (status = api->GetTensorMutableData((Value *)value, &data)))
            return status;
        buffers[place] = buffer_of(&tensors[place], data);
        if (is_first)
            ask_for_huge_pages(data, bytes_of_tensor(&tensors[place]), 1);
    }
    Value *made;
    if ((status = api->KernelContext_GetOutput(context, 0, output->sizes, (size_t)output->rank, &made)) ||
        (status = api->GetTensorMutableData(made, &data)))
        return status;
    if (output->empty)
        return NULL;
    buffers[own->kernel->inputs] = buffer_of(output, data);
    Call call = {.api = api, .context = context, .flushing = own->kernel->flushing};
    Strand strand;
    strand.call = &call;
    strand.held = NULL;
    call.before = begin_flushing(&call);
    run_kernel(&strand, own->kernel, buffers);
    end_flushing(&call, call.before);
    return has_failed(&call) ? make_status(api, FAIL, "%s: %s", own->kernel->name, call.message) : NULL;
}

/* --------------------------------------------------------------------------------------------- the processor */

#ifdef __x86_64__
#include <cpuid.h>

static int has(const Feature *feature)
{
    uint32_t found[4];
    if (!__get_cpuid_count(feature->leaf, feature->part, &found[0], &found[1], &found[2], &found[3]) ||
        !(found[feature->reg] >> feature->bit & 1))
        return 0;
    if (!feature->saved)
        return 1;
    if (!__get_cpuid(1, &found[0], &found[1], &found[2], &found[3]) || !(found[2] >> 27 & 1))
        return 0;
    uint32_t low, high;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (low & feature->saved) == feature->saved;
}
#else
static int has(const Feature *feature)
{
    (void)feature;
    return 0;
}
#endif

static Status *check_processor(const Api *api)
{
    char lacking[WORDS] = "";
    size_t end = 0;
    for (const Feature *feature = FEATURES; feature->name; feature++)
        if (!has(feature) && end < sizeof lacking)
            end += (size_t)snprintf(lacking + end, sizeof lacking - end, end ? ", %s" : "%s", feature->name);
    if (!end)
        return NULL;
    return make_status(api, FAIL,
                       "these kernels cannot run here: this processor lacks %s, for which they were compiled", lacking);
}

/* ----------------------------------------------------------------------------------------------- registration */

static Status *make_domain(const Api *api)
{
    Domain *made;
    Status *status = api->CreateCustomOpDomain(DOMAIN_NAME, &made);
    if (status)
        return status;
    for (int place = 0; place < KERNEL_COUNT; place++) {
        operators[place].kernel = &KERNELS[place];
        operators[place].op = (CustomOp){
            .version = CUSTOM_OP_VERSION,
            .GetName = name_of,
            .GetExecutionProviderType = provider,
            .GetInputType = input_type,
            .GetInputTypeCount = input_count,
            .GetOutputType = output_type,
            .GetOutputTypeCount = output_count,
            .KernelDestroy = free,
            .GetInputCharacteristic = default_memory,
            .GetOutputCharacteristic = default_memory,
            .GetInputMemoryType = default_memory,
            .GetVariadicInputMinArity = return_one,
            .GetVariadicInputHomogeneity = return_one,
            .GetVariadicOutputMinArity = return_one,
            .GetVariadicOutputHomogeneity = return_one,
            .CreateKernelV2 = create_kernel,
            .KernelComputeV2 = compute,
            .InferOutputShapeFn = infer_shape,
            .GetStartVersion = return_one,
            .GetEndVersion = last_version,
        };
        if ((status = api->CustomOpDomain_Add(made, &operators[place].op)))
            return status;
    }
    domain = made;
    return NULL;
}

__attribute__((visibility("default"))) Status *RegisterCustomOps(SessionOptions *options, const ApiBase *base)
{
    const Api *api = base->GetApi(OLDEST);
    if (!api) {
        const Api *first = base->GetApi(1);
        return first ? make_status(first, FAIL, "these kernels need onnxruntime 1.%d or newer, this is %s", OLDEST,
                               base->GetVersionString())
                     : NULL;
    }
    Status *status = check_processor(api);
    if (status)
        return status;
    lock();
    latest = api;
    if (!domain) /* one domain serves all sessions, so that a session leaves nothing behind */
        status = make_domain(api);
    unlock();
    return status ? status : api->AddCustomOpDomain(options, domain);
}
