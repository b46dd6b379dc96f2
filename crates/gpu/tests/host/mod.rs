//! Runs the launches of lowered nodes on the host: many cases become one C++ file, which is compiled and run as a process.
//! Every buffer lies between red zones, results and scratch memory start as 0xff bytes, and operands must stay as they are.
//! The same cases run on a device where one is asked for.
#![allow(dead_code, reason = "each test file uses a part of it")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

pub mod device;
mod templates;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt::{Display, Write as _};
use std::path::Path;
use std::process::Command;

use precast_gpu::kernel::{Arch, HOST, Launch, Lowered, MATRIX, Operand, PRELUDE, Vendor};
use precast_gpu::lower::lower;
use precast_gpu::site::{Layouts, Site, dense_strides};
use precast_ir::op::Fused;
use precast_ir::{Graph, Op, ValueId};
use precast_tensor::{DType, Tensor};
use precast_testing::tolerance::Reference;

/// Cases of one C++ file: enough to share the cost of the prelude, few enough to name the one that fails to compile.
const CASES_PER_FILE: usize = 192;

/// -Og is the least time of compiling and running together; compiling is most of it.
const OPTIONS: &[&str] =
    &["-std=c++17", "-Og", "-g0", "-w", "-pipe", "-fno-exceptions", "-DPRECAST_HOST", "-o", "run", "run.cc"];

/// Shared memory that every machine gives a block.
const SHARED_BYTES_MAX: u32 = 48 << 10;

/// What the launches of a run are compiled for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mode {
    /// Threads of a warp.
    pub warp: u32,
    /// Arguments are addresses of pointers.
    pub is_indirect: bool,
    /// Shared memory that one block may have.
    pub shared_bytes_max: u32,
}

/// Warps of 32 threads, plain arguments.
pub const PLAIN: Mode = Mode { warp: 32, is_indirect: false, shared_bytes_max: SHARED_BYTES_MAX };
/// The same, with as much shared memory as the largest machines have.
pub const LARGE: Mode = Mode { shared_bytes_max: 227 << 10, ..PLAIN };
/// Warps of 64 threads.
pub const WIDE: Mode = Mode { warp: 64, ..PLAIN };
/// Arguments through a table.
pub const INDIRECT: Mode = Mode { is_indirect: true, ..PLAIN };

/// A graph, its inputs, and where elements lie.
#[derive(Clone)]
pub struct Case {
    /// Name in messages.
    pub name: String,
    /// Nodes that are lowered one by one.
    pub graph: Graph,
    /// Values of the graph's inputs, in row-major order.
    pub inputs: Vec<Tensor>,
    /// Where elements lie.
    pub layouts: Layouts,
    /// Error beyond the tolerance, relative to the largest element; for ops whose reference has no bound of its own.
    pub slack: f64,
}

impl Case {
    /// One node; its operands are inputs.
    pub fn new(op: impl Into<Op>, inputs: &[Tensor]) -> Case {
        let op = op.into();
        let shapes: Vec<String> = inputs.iter().map(|input| input.type_().to_string()).collect();
        let attributes: Vec<String> =
            op.attributes().into_iter().map(|(name, value)| format!("{name}={value}")).collect();
        let mut name = format!("{} {{{}}} of {}", op.name(), attributes.join(", "), shapes.join(", "));
        name.truncate(400);
        let mut graph = Graph::new("");
        let values: Vec<ValueId> = inputs.iter().map(|input| graph.add_input("", input.type_())).collect();
        let outputs =
            graph.add_node(op, &values, &Default::default()).unwrap_or_else(|error| panic!("{name}: {error}"));
        for output in outputs {
            graph.add_output("", output);
        }
        Case { name, graph, inputs: inputs.to_vec(), layouts: Layouts::default(), slack: 0.0 }
    }

    /// A graph, node by node.
    pub fn of_graph(name: &str, graph: Graph, inputs: &[Tensor]) -> Case {
        Case { name: name.to_string(), graph, inputs: inputs.to_vec(), layouts: Layouts::default(), slack: 0.0 }
    }

    /// The whole graph as the body of one fused node.
    pub fn fused(name: &str, body: Graph, inputs: &[Tensor]) -> Case {
        let mut case = Case::new(Fused { body }, inputs);
        case.name = name.to_string();
        case
    }

    /// One fused node with this body; of its operands those that are named are constants of the graph.
    pub fn fused_with_constants(name: &str, body: Graph, operands: &[Tensor], constants: &[usize]) -> Case {
        let mut graph = Graph::new("");
        let mut values = Vec::new();
        for (at, operand) in operands.iter().enumerate() {
            values.push(match constants.contains(&at) {
                true => graph.add_constant(operand.clone()),
                false => graph.add_input("", operand.type_()),
            });
        }
        let outputs = graph.add_node(Fused { body }, &values, &Default::default()).unwrap();
        for output in outputs {
            graph.add_output("", output);
        }
        let given = operands.iter().enumerate().filter(|(at, _)| !constants.contains(at));
        let inputs = given.map(|(_, operand)| operand.clone()).collect();
        Case { name: name.to_string(), graph, inputs, layouts: Layouts::default(), slack: 0.0 }
    }

    /// Allows a further error, relative to the largest element.
    pub fn with_slack(mut self, slack: f64) -> Case {
        self.slack = slack;
        self
    }

    /// Puts axis 1 of the values with three axes or more innermost.
    pub fn channels_last(mut self) -> Case {
        for (at, value) in self.graph.values().iter().enumerate() {
            if value.ty.dims.len() > 2 && self.graph.constant(ValueId(at as u32)).is_none() {
                self.layouts.set_channels_last(ValueId(at as u32));
            }
        }
        self.name.push_str(" channels last");
        self
    }

    /// Puts axis 1 of some values innermost: inputs first, then results.
    pub fn channels_last_values(mut self, values: &[u32]) -> Case {
        for &value in values {
            self.layouts.set_channels_last(ValueId(value));
        }
        let _ = write!(self.name, " channels last {values:?}");
        self
    }
}

/// Gives the kernels of a node.
pub type LowerFn<'a> = dyn Fn(&Site) -> Result<Option<Lowered>, String> + 'a;

/// A machine with warps of `warp` threads.
pub fn arch(warp: u32) -> Arch {
    let (vendor, name) = if warp == 64 { (Vendor::Hip, "gfx90a") } else { (Vendor::Cuda, "sm_90a") };
    Arch { vendor, name: name.to_string(), warp, shared_bytes_max: SHARED_BYTES_MAX, multiprocessors: 4 }
}

/// Runs cases and compares them with reference evaluation; panics with all that differ.
pub fn check(cases: &[Case], mode: Mode) {
    if device::asked().is_none() {
        let failures = templates::compile_new(cases);
        assert!(failures.is_empty(), "{}", failures.join("\n"));
    }
    check_with(cases, mode, &lower);
}

/// The same with kernels that `lower` gives.
pub fn check_with(cases: &[Case], mode: Mode, lower: &LowerFn) {
    if device::asked().is_some_and(|rig| !rig.takes(mode)) {
        return;
    }
    let mut failures = Vec::new();
    for cases in cases.chunks(CASES_PER_FILE) {
        match run(cases, mode, lower) {
            Ok(all) => {
                for (case, outputs) in cases.iter().zip(all) {
                    if let Some(difference) = first_difference(case, &outputs) {
                        failures.push(format!("{}: {difference}", case.name));
                    }
                }
            }
            Err(message) => failures.push(message),
        }
    }
    assert!(failures.is_empty(), "{} failures in {mode:?}:\n{}", failures.len(), failures.join("\n"));
}

/// Checks that the GPU has no kernel for a node.
pub fn check_none(case: &Case) {
    let arch = arch(32);
    let site = Site { graph: &case.graph, node: &case.graph.nodes()[0], arch: &arch, layouts: &case.layouts };
    assert!(lower(&site).unwrap().is_none(), "{}", case.name);
}

/// Texts of the launches of a case.
pub fn texts(case: &Case) -> Vec<String> {
    plan(case, PLAIN, &lower).unwrap().launches.into_iter().map(|(launch, _)| launch.text).collect()
}

/// Launches of the nodes of a case.
pub fn launch_count(case: &Case) -> usize {
    plan(case, PLAIN, &lower).unwrap().launches.len()
}

fn first_difference(case: &Case, outputs: &[Tensor]) -> Option<String> {
    // The tolerance of a fused node is that of its body.
    let whole = || (case.graph.clone(), case.inputs.clone());
    let (body, inputs) = match case.graph.nodes() {
        [node] => match &node.op {
            Op::Fused(fused) => {
                let given = case.graph.inputs().iter().zip(&case.inputs);
                let operand = |value: &ValueId| match case.graph.constant(*value) {
                    Some(tensor) => tensor.clone(),
                    None => given.clone().find(|(input, _)| *input == value).unwrap().1.clone(),
                };
                (fused.body.clone(), node.inputs.iter().map(operand).collect())
            }
            _ => whole(),
        },
        _ => whole(),
    };
    let reference = match Reference::new(&body, &inputs) {
        Ok(reference) => reference,
        Err(error) => return Some(format!("the reference fails: {error}")),
    };
    let difference = reference.first_difference(outputs)?.to_string();
    let is_near = case.slack > 0.0
        && reference.outputs.iter().zip(outputs).all(|(expected, found)| {
            let (expected, found) = (expected.to_f64_vec(), found.to_f64_vec());
            let largest = expected.iter().map(|x| x.abs()).filter(|x| x.is_finite()).fold(0.0, f64::max);
            expected.iter().zip(&found).all(|(expected, found)| {
                (expected.is_nan() && found.is_nan())
                    || expected == found
                    || (expected - found).abs() <= case.slack * largest
            })
        });
    (!is_near).then_some(difference)
}

/// What a buffer holds before the run.
#[derive(Clone)]
pub enum Content {
    /// These bytes, which no kernel may change.
    Bytes(Vec<u8>),
    /// 0xff bytes, so many.
    Unset(usize),
}

/// Everything that one case needs.
pub struct Plan {
    /// Name in messages.
    pub name: String,
    /// Buffers before the run.
    pub buffers: Vec<Content>,
    /// Launches with the buffers of their operands.
    pub launches: Vec<(Launch, Vec<usize>)>,
    /// Buffers of the graph's outputs, their Types, and whether axis 1 is innermost.
    pub outputs: Vec<(usize, DType, Vec<usize>, bool)>,
}

fn plan(case: &Case, mode: Mode, lower: &LowerFn) -> Result<Plan, String> {
    let arch = Arch { shared_bytes_max: mode.shared_bytes_max, ..arch(mode.warp) };
    let graph = &case.graph;
    let mut buffers = Vec::new();
    let mut of_value: BTreeMap<u32, usize> = BTreeMap::new();
    for (&input, tensor) in graph.inputs().iter().zip(&case.inputs) {
        of_value.insert(input.0, buffers.len());
        buffers.push(Content::Bytes(to_memory(tensor, case.layouts.is_channels_last(input))));
    }
    for (at, _) in graph.values().iter().enumerate() {
        if let Some(tensor) = graph.constant(ValueId(at as u32)) {
            of_value.insert(at as u32, buffers.len());
            buffers.push(Content::Bytes(to_memory(tensor, case.layouts.is_channels_last(ValueId(at as u32)))));
        }
    }
    let mut launches = Vec::new();
    for node in graph.nodes() {
        for &output in &node.outputs {
            let ty = graph.ty(output);
            of_value.insert(output.0, buffers.len());
            let elements: usize = ty.shape().ok_or("an output has symbols")?.iter().product();
            buffers.push(Content::Unset(elements * ty.dtype.size_bytes()));
        }
        let site = Site { graph, node, arch: &arch, layouts: &case.layouts };
        let lowered = lower(&site)?.ok_or_else(|| format!("{}: no kernel for {}", case.name, node.op.name()))?;
        let Lowered { launches: steps, scratch_bytes, packed, .. } = lowered;
        let scratch_first = buffers.len();
        buffers.extend(scratch_bytes.iter().map(|&bytes| Content::Unset(bytes as usize)));
        let packed_first = buffers.len();
        buffers.extend(packed.iter().map(|tensor| Content::Bytes(tensor.as_bytes().to_vec())));
        for launch in steps {
            check_launch(&case.name, &launch, mode)?;
            let operands = launch.operands.iter().map(|operand| match *operand {
                Operand::Read(at) => of_value[&node.inputs[at as usize].0],
                Operand::Write(at) => of_value[&node.outputs[at as usize].0],
                Operand::Scratch(at) => scratch_first + at as usize,
                Operand::Packed(at) => packed_first + at as usize,
            });
            let operands = operands.collect();
            launches.push((launch, operands));
        }
    }
    let outputs = graph.outputs().iter().map(|output| {
        let ty = graph.ty(output.value);
        let is_channels_last = case.layouts.is_channels_last(output.value);
        (of_value[&output.value.0], ty.dtype, ty.shape().unwrap(), is_channels_last)
    });
    let outputs = outputs.collect();
    Ok(Plan { name: case.name.clone(), buffers, launches, outputs })
}

fn check_launch(name: &str, launch: &Launch, mode: Mode) -> Result<(), String> {
    let threads: u64 = launch.block.iter().map(|&extent| u64::from(extent)).product();
    let is_grid_legal = launch.grid[0] >= 1
        && launch.grid[0] <= i32::MAX as u32
        && launch.grid[1..].iter().all(|&extent| (1..=65535).contains(&extent));
    if !(1..=1024).contains(&threads) || !is_grid_legal || launch.shared_bytes > mode.shared_bytes_max {
        return Err(format!(
            "{name}: launch of grid {:?}, block {:?}, {} shared bytes",
            launch.grid, launch.block, launch.shared_bytes
        ));
    }
    Ok(())
}

/// The outputs of each case, in row-major order.
pub fn run(cases: &[Case], mode: Mode, lower: &LowerFn) -> Result<Vec<Vec<Tensor>>, String> {
    let plans: Vec<Plan> = cases.iter().map(|case| plan(case, mode, lower)).collect::<Result<_, _>>()?;
    run_plans(&plans, mode)
}

/// The outputs of each plan, in row-major order.
pub fn run_plans(plans: &[Plan], mode: Mode) -> Result<Vec<Vec<Tensor>>, String> {
    match device::asked() {
        Some(rig) => rig.run(plans, mode),
        None => run_on_host(plans, mode),
    }
}

fn run_on_host(plans: &[Plan], mode: Mode) -> Result<Vec<Vec<Tensor>>, String> {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    std::fs::write(path("host.h"), HOST).unwrap();
    std::fs::write(path("prelude.h"), PRELUDE).unwrap();
    std::fs::write(path("run.cc"), source(plans, mode)).unwrap();
    let mut bytes = Vec::new();
    for content in plans.iter().flat_map(|plan| &plan.buffers) {
        if let Content::Bytes(content) = content {
            bytes.extend_from_slice(content);
        }
    }
    std::fs::write(path("in"), bytes).unwrap();
    let compile = Command::new("c++")
        .args(OPTIONS)
        .current_dir(directory.path())
        .output()
        .map_err(|error| format!("c++ does not start: {error}"))?;
    if !compile.status.success() {
        return Err(compile_error(directory.path(), &String::from_utf8_lossy(&compile.stderr)));
    }
    let output = Command::new(path("run")).current_dir(directory.path()).output().unwrap();
    if !output.status.success() {
        return Err(format!(
            "the run ends with {}: {}{}",
            output.status,
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        ));
    }
    let found = std::fs::read(path("out")).unwrap();
    let mut at = 0;
    let mut all = Vec::new();
    for plan in plans {
        let mut outputs = Vec::new();
        for (buffer, dtype, shape, is_channels_last) in &plan.outputs {
            let size = match &plan.buffers[*buffer] {
                Content::Bytes(bytes) => bytes.len(),
                Content::Unset(size) => *size,
            };
            outputs.push(from_memory(*dtype, shape, &found[at..at + size], *is_channels_last));
            at += size;
        }
        all.push(outputs);
    }
    Ok(all)
}

/// The first error with the lines around it.
fn compile_error(directory: &Path, message: &str) -> String {
    let source = std::fs::read_to_string(directory.join("run.cc")).unwrap();
    let lines: Vec<&str> = source.lines().collect();
    let place = message.lines().find(|line| line.contains("error")).unwrap_or(message);
    let number = place.split(':').nth(1).and_then(|number| number.parse::<usize>().ok()).unwrap_or(1);
    let first = number.saturating_sub(40).min(lines.len());
    let around = lines[first..lines.len().min(number + 3)].join("\n");
    let message: String = message.lines().take(12).collect::<Vec<_>>().join("\n");
    format!("{around}\n{message}")
}

/// Numbers of the kernels of a file, by entry and text.
type Numbers<'a> = BTreeMap<(&'a str, &'a str), usize>;

fn source(plans: &[Plan], mode: Mode) -> String {
    let indirect = if mode.is_indirect { "~0ull" } else { "0ull" };
    let mut text = format!("#define WARP {}\n#define INDIRECT {indirect}\n#include \"prelude.h\"\n", mode.warp);
    text.push_str(RUNNER);
    let launches = || plans.iter().flat_map(|plan| &plan.launches);
    if launches().any(|(launch, _)| launch.text.contains(MATRIX)) {
        text.push_str(MATRIX);
    }
    // Equal texts are compiled once, and what products and attentions share is there once.
    let mut numbers = Numbers::new();
    for (launch, _) in launches() {
        let number = numbers.len();
        if let Entry::Vacant(vacant) = numbers.entry((&launch.entry, &launch.text)) {
            vacant.insert(number);
            let (entry, body) = (&launch.entry, launch.text.replace(MATRIX, ""));
            let _ = write!(
                text,
                "#define {entry} entry_{number}\nnamespace text_{number} {{\n{body}\n}}\n#undef {entry}\n"
            );
        }
    }
    for (at, plan) in plans.iter().enumerate() {
        push_case(&mut text, at, plan, &numbers);
    }
    text.push_str("int main() {\n  in = fopen(\"in\", \"rb\");\n  out = fopen(\"out\", \"wb\");\n");
    for at in 0..plans.len() {
        let _ = writeln!(text, "  run_case(case_{at});");
    }
    text.push_str("  return fclose(out) || failures;\n}\n");
    text
}

/// The tables of a case, whose texts have these numbers.
fn push_case(text: &mut String, at: usize, plan: &Plan, numbers: &Numbers) {
    let mut launches = String::new();
    for (step, (launch, operands)) in plan.launches.iter().enumerate() {
        push_table(text, "int", &format!("operands_{at}_{step}"), operands);
        push_table(text, "i64", &format!("scalars_{at}_{step}"), &launch.scalars);
        let number = numbers[&(launch.entry.as_str(), launch.text.as_str())];
        let ([gx, gy, gz], [bx, by, bz]) = (launch.grid, launch.block);
        let _ = writeln!(
            launches,
            "  {{text_{number}::entry_{number}_host, &text_{number}::entry_{number}_params, {{{gx}, {gy}, {gz}}}, {{{bx}, {by}, \
             {bz}}}, {}, operands_{at}_{step}, {}, scalars_{at}_{step}, {}}},",
            launch.shared_bytes,
            operands.len(),
            launch.scalars.len(),
        );
    }
    let sizes: Vec<i64> = plan
        .buffers
        .iter()
        .map(|content| match content {
            Content::Bytes(bytes) => !(bytes.len() as i64),
            Content::Unset(size) => *size as i64,
        })
        .collect();
    push_table(text, "i64", &format!("buffers_{at}"), &sizes);
    let outputs: Vec<usize> = plan.outputs.iter().map(|(buffer, ..)| *buffer).collect();
    push_table(text, "int", &format!("outputs_{at}"), &outputs);
    let name = plan.name.replace(['"', '\\', '\n', '%'], "'");
    let _ = write!(
        text,
        "static const Launch launches_{at}[] = {{\n{launches}  {{}}}};\nstatic const Case case_{at} = {{\"{name}\", \
         buffers_{at}, {}, launches_{at}, {}, outputs_{at}, {}}};\n",
        sizes.len(),
        plan.launches.len(),
        outputs.len(),
    );
}

/// An array of numbers; one more than given, since none may be empty.
fn push_table(text: &mut String, element: &str, name: &str, numbers: &[impl Display]) {
    let _ = write!(text, "static const {element} {name}[] = {{");
    for number in numbers {
        let _ = write!(text, "{number}, ");
    }
    text.push_str("0};\n");
}

/// The part of the C++ file that is the same in all.
const RUNNER: &str = r#"
static FILE *in, *out;
static int failures;
static const size_t ZONE = 256;

struct Buffer {
    u8 *memory, *expected;
    size_t bytes, first;
    u8 *data() { return memory + first; }
};

static Buffer make_buffer(size_t bytes) {
    Buffer buffer = {(u8 *)malloc(bytes + 3 * ZONE), nullptr, bytes, 0};
    memset(buffer.memory, 0xa5, bytes + 3 * ZONE);
    u64 base = (u64)buffer.memory;
    buffer.first = (base + ZONE + 255) / 256 * 256 - base;
    memset(buffer.data(), 0xff, bytes);
    return buffer;
}

static Buffer read_buffer(size_t bytes) {
    Buffer buffer = make_buffer(bytes);
    if (fread(buffer.data(), 1, bytes, in) != bytes) abort();
    buffer.expected = (u8 *)malloc(bytes + 1);
    memcpy(buffer.expected, buffer.data(), bytes);
    return buffer;
}

// What a case launches: operands are numbers of its buffers.
struct Launch {
    void (*kernel)(u32, u32, u32, u32, u32, u32, u32, void **);
    const unsigned *params;
    u32 grid[3], block[3], shared;
    const int *operands;
    u32 operands_count;
    const i64 *scalars;
    u32 scalars_count;
};

static void launch(Buffer *buffers, const Launch &launch, const char *name) {
    u32 count = launch.operands_count + launch.scalars_count;
    if (count != *launch.params) {
        printf("%s: a launch passes %u arguments to %u parameters\n", name, count, *launch.params);
        exit(1);
    }
    struct Argument {
        u8 *pointer;
        // What a table has beside it for a whole buffer.
        u64 end_bytes, missing_bytes;
        u8 **place;
        i64 scalar;
    };
    Argument *arguments = (Argument *)malloc((count + 1) * sizeof(Argument));
    void **args = (void **)malloc((count + 1) * sizeof(void *));
    for (u32 i = 0; i < count; i++) {
        Argument &argument = arguments[i];
        if (i >= launch.operands_count) {
            argument.scalar = launch.scalars[i - launch.operands_count];
            args[i] = &argument.scalar;
            continue;
        }
        argument.pointer = buffers[launch.operands[i]].data();
        argument.end_bytes = WHOLE_BYTES;
        argument.missing_bytes = 0;
        argument.place = &argument.pointer;
        args[i] = INDIRECT != 0 ? (void *)&argument.place : (void *)&argument.pointer;
    }
    const u32 *grid = launch.grid, *block = launch.block;
    launch.kernel(grid[0], grid[1], grid[2], block[0], block[1], block[2], launch.shared, args);
    free(args);
    free(arguments);
}

static void finish(Buffer *buffers, u32 count, const int *outputs, u32 outputs_count, const char *name) {
    for (u32 i = 0; i < outputs_count; i++) {
        Buffer &output = buffers[outputs[i]];
        fwrite(output.data(), 1, output.bytes, out);
    }
    for (u32 i = 0; i < count; i++) {
        Buffer &buffer = buffers[i];
        bool is_hurt = buffer.expected && memcmp(buffer.data(), buffer.expected, buffer.bytes) != 0;
        if (is_hurt) printf("%s: operand %u has been written\n", name, i);
        for (size_t at = 0; at < buffer.bytes + 3 * ZONE; at++) {
            bool is_inside = at >= buffer.first && at < buffer.first + buffer.bytes;
            if (is_inside || buffer.memory[at] == 0xa5) continue;
            printf("%s: buffer %u of %zu bytes has been written at %lld\n", name, i, buffer.bytes, (i64)at - (i64)buffer.first);
            is_hurt = true;
            break;
        }
        failures += is_hurt;
        free(buffer.expected);
        free(buffer.memory);
    }
}

// What a case is. Sizes of its buffers are inverted where bytes are read.
struct Case {
    const char *name;
    const i64 *buffers;
    u32 buffers_count;
    const Launch *launches;
    u32 launches_count;
    const int *outputs;
    u32 outputs_count;
};

static void run_case(const Case &one) {
    Buffer *buffers = (Buffer *)malloc((one.buffers_count + 1) * sizeof(Buffer));
    for (u32 i = 0; i < one.buffers_count; i++)
        buffers[i] = one.buffers[i] < 0 ? read_buffer(~one.buffers[i]) : make_buffer(one.buffers[i]);
    for (u32 i = 0; i < one.launches_count; i++) launch(buffers, one.launches[i], one.name);
    finish(buffers, one.buffers_count, one.outputs, one.outputs_count, one.name);
    free(buffers);
}
"#;

/// Where each element of a tensor in row-major order lies in memory.
fn places(shape: &[usize], is_channels_last: bool) -> Vec<usize> {
    let strides = dense_strides(shape, is_channels_last);
    let count: usize = shape.iter().product();
    let place = |mut at: usize| {
        let mut place = 0;
        for axis in (0..shape.len()).rev() {
            place += at % shape[axis] * strides[axis];
            at /= shape[axis];
        }
        place
    };
    (0..count).map(place).collect()
}

fn to_memory(tensor: &Tensor, is_channels_last: bool) -> Vec<u8> {
    let (size, bytes) = (tensor.dtype().size_bytes(), tensor.as_bytes());
    let mut memory = vec![0; bytes.len()];
    for (at, place) in places(tensor.shape(), is_channels_last).into_iter().enumerate() {
        memory[place * size..(place + 1) * size].copy_from_slice(&bytes[at * size..(at + 1) * size]);
    }
    memory
}

fn from_memory(dtype: DType, shape: &[usize], memory: &[u8], is_channels_last: bool) -> Tensor {
    let size = dtype.size_bytes();
    let mut bytes = vec![0; memory.len()];
    for (at, place) in places(shape, is_channels_last).into_iter().enumerate() {
        bytes[at * size..(at + 1) * size].copy_from_slice(&memory[place * size..(place + 1) * size]);
    }
    if dtype == DType::Bool {
        // Not every byte is a bool: what is none is shown as the opposite of nothing expected.
        assert!(bytes.iter().all(|&byte| byte < 2), "a byte of a bool result is neither 0 nor 1");
    }
    Tensor::new(dtype, shape, bytes.into()).unwrap()
}

/// Numbers between `low` and `high`, the same for a seed; whole ones for integers.
pub fn numbers(dtype: DType, shape: &[usize], seed: u64, low: f64, high: f64) -> Tensor {
    let count: usize = shape.iter().product();
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(0x1234_5678_9abc_def1);
    let mut values = Vec::with_capacity(count);
    for _ in 0..count {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let unit = (state >> 11) as f64 / (1u64 << 53) as f64;
        let value = low + (high - low) * unit;
        values.push(if dtype.is_float() { value } else { value.floor() });
    }
    of_values(dtype, shape, &values)
}

/// These numbers as elements of a type.
pub fn of_values(dtype: DType, shape: &[usize], values: &[f64]) -> Tensor {
    let exact = Tensor::from_vec(shape, values.to_vec()).unwrap();
    let op = precast_ir::op::Cast { to: dtype, saturate: true };
    precast_ir::Operation::eval(&op, &[exact]).unwrap().remove(0)
}
