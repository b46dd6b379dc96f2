//! Programs as files: compiling gives the same bytes every time, and loading refuses with a sentence what it cannot
//! run.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;

use precast_cpu::{CpuDevice, CpuTarget, Isa};
use precast_ir::attr::NoConstants;
use precast_ir::op::Conv;
use precast_ir::{Graph, text};
use precast_passes::{Numerics, PassOptions, WeightPrecision};
use precast_program::{Bucket, Device, LoadedProgram, MemoryStore, Place, Program, Slot, Target, decode, encode};
use precast_tensor::{DType, Tensor, Type};

/// One step of many kinds, with large and small constants. The numbers of a constant do not matter here.
fn graph() -> Graph {
    let weights = |count: usize| vec!["0.5"; count].join(", ");
    let graph = format!(
        r#"graph "mixed"(%0 "x": f32[1,4,6,6], %1 "i": i64[3]) {{
  %2 = constant f32[4,4,3,3] [{conv}]
  %3 = constant f32[4] [0.1, 0.2, 0.3, 0.4]
  %4 = conv(%0, %2, %3) {{stride=[1, 1], pad_lo=[1, 1], pad_hi=[1, 1], dilation=[1, 1], groups=1}} : f32[1,4,6,6]
  %5 = binary.add(%4, %0) : f32[1,4,6,6]
  %6 = unary.relu(%5) {{alpha=0.0, beta=0.0}} : f32[1,4,6,6]
  %7 = pool.max(%6) {{window=[2, 2], stride=[2, 2], pad_lo=[0, 0], pad_hi=[0, 0], dilation=[1, 1], output=[3, 3], count_pad=false, p=2}} : f32[1,4,3,3]
  %8 = resize.linear(%7) {{coordinates=half_pixel, nearest=floor, output=[1, 4, 6, 6], scales=[1.0, 1.0, 2.0, 2.0], cubic_a=-0.75, exclude_outside=false, antialias=false, roi=[], extrapolation=0.0}} : f32[1,4,6,6]
  %9 = reshape(%8) {{shape=[24, 6]}} : f32[24,6]
  %10 = constant f32[6,7] [{gemm}]
  %11 = matmul(%9, %10) {{transpose_a=false, transpose_b=false}} : f32[24,7]
  %12 = constant f32[7] [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
  %13 = binary.add(%11, %12) : f32[24,7]
  %14 = unary.tanh(%13) {{alpha=0.0, beta=0.0}} : f32[24,7]
  %15 = softmax(%14) {{axis=1, log=false}} : f32[24,7]
  %16 = transpose(%15) {{perm=[1, 0]}} : f32[7,24]
  %17 = matmul(%16, %15) {{transpose_a=false, transpose_b=false}} : f32[7,7]
  %18 = layer_norm(%17, %12) {{axis=1, epsilon=1e-5}} : f32[7,7]
  %19 = gather(%18, %1) {{axis=0}} : f32[3,7]
  %20 = reduce.sum(%19) {{axes=[1], keep_dims=true}} : f32[3,1]
  %21 = concat(%19, %20) {{axis=1}} : f32[3,8]
  %22 = unary.exp(%21) {{alpha=0.0, beta=0.0}} : f32[3,8]
  %23 = binary.mul(%22, %20) : f32[3,8]
  %24 = pad.reflect(%23) {{lo=[1, 2], hi=[0, 1]}} : f32[4,11]
  %25 = slice(%24) {{start=[3, 0], step=[-1, 2], size=[4, 5]}} : f32[4,5]
  %26 = constant f32[] [0.1]
  %27 = constant u8[] [100]
  %28 = quantize(%25, %26, %27) {{to=u8, axis=0, block=0, saturate=true, precision=f32}} : u8[4,5]
  %29 = constant i8[5,4] [{bytes}]
  %30 = constant i8[] [1]
  %31 = matmul_int(%28, %29, %27, %30) : i32[4,4]
  %32 = arg_reduce.max(%25) {{axis=1, keep_dims=false, last=false}} : i64[4]
  %33, %34 = topk(%25) {{axis=1, k=2, largest=true}} : f32[4,2], i64[4,2]
  %35 = constant f32[1,8,5] [{w}]
  %36 = constant f32[1,8,2] [{r}]
  %37 = reshape(%25) {{shape=[2, 2, 5]}} : f32[2,2,5]
  %38, %39, %40 = recurrent.lstm(%37, %35, %36) {{direction=forward, hidden=2, activations=[sigmoid, tanh, tanh], alphas=[0.0, 0.0, 0.0], betas=[0.0, 0.0, 0.0], clip=0.0, input_forget=false, linear_before_reset=false, rounds_state=false, bias=false, lengths=false, initial_h=false, initial_c=false, peepholes=false}} : f32[2,1,2,2], f32[1,2,2], f32[1,2,2]
  return "a" %31, "b" %32, "c" %33, "d" %38
}}
"#,
        conv = weights(144),
        gemm = weights(42),
        bytes = ["3"; 20].join(", "),
        w = weights(40),
        r = weights(16),
    );
    text::parse(&graph, &NoConstants).unwrap()
}

fn target(isa: Isa, threads: usize) -> CpuTarget {
    CpuTarget::new(isa, threads, PassOptions::default())
}

fn compile(store: &MemoryStore) -> Program {
    target(Isa::Portable, 1).compile(&graph(), &Bucket::default(), store).unwrap()
}

fn load(program: Program, store: &MemoryStore) -> Result<Arc<dyn LoadedProgram>, String> {
    CpuDevice::new(1).load(&Arc::new(program), store).map_err(|error| error.to_string())
}

/// The sentence with which a Program is refused.
fn refusal(program: Program, store: &MemoryStore) -> String {
    match load(program, store) {
        Ok(_) => panic!("the Program was loaded"),
        Err(sentence) => sentence,
    }
}

fn run(loaded: &dyn LoadedProgram) -> Result<Vec<Vec<u64>>, String> {
    let words = |bytes: u64| vec![0u64; (bytes as usize).div_ceil(8)];
    let program = loaded.program();
    let inputs: Vec<Vec<u64>> = program.inputs.iter().map(|port| words(port.bytes)).collect();
    let mut outputs: Vec<Vec<u64>> = program.outputs.iter().map(|port| words(port.bytes)).collect();
    let inputs: Vec<&[u8]> = program
        .inputs
        .iter()
        .zip(&inputs)
        .map(|(port, words)| &bytemuck::cast_slice(words)[..port.bytes as usize])
        .collect();
    let mut slices: Vec<&mut [u8]> = program
        .outputs
        .iter()
        .zip(&mut outputs)
        .map(|(port, words)| &mut bytemuck::cast_slice_mut(words)[..port.bytes as usize])
        .collect();
    CpuDevice::new(1)
        .context(program.arena_bytes)
        .run(loaded, &inputs, &mut slices)
        .map_err(|error| error.to_string())?;
    Ok(outputs)
}

#[test]
fn compiling_twice_and_on_two_threads_gives_the_same_bytes() {
    for isa in Isa::ALL {
        let bytes = || {
            let store = MemoryStore::default();
            let program = target(isa, 2).compile(&graph(), &Bucket::default(), &store).unwrap();
            let digests: Vec<String> = store.tensors().iter().map(|(digest, _)| digest.to_string()).collect();
            (encode(&program), digests)
        };
        let first = bytes();
        assert_eq!(bytes(), first, "{isa:?}");
        std::thread::scope(|scope| {
            let others = [scope.spawn(bytes), scope.spawn(bytes)];
            for other in others {
                assert_eq!(other.join().unwrap(), first, "{isa:?}");
            }
        });
    }
}

#[test]
fn a_program_from_its_file_computes_the_same() {
    let store = MemoryStore::default();
    let program = compile(&store);
    let decoded = decode(&encode(&program)).unwrap();
    assert_eq!(decoded, program);
    let outputs = run(&*load(program, &store).unwrap()).unwrap();
    assert_eq!(run(&*load(decoded, &store).unwrap()).unwrap(), outputs);
}

#[test]
fn programs_for_something_else_are_refused_with_a_sentence() {
    let store = MemoryStore::default();
    let program = compile(&store);
    let with_target = |target: &str| Program { target: target.to_string(), ..program.clone() };
    let cases = [
        ("cuda:sm_90 threads=1", "it is not a CPU target of this build"),
        ("cpu:portable", "it is not a CPU target of this build"),
        ("cpu:portable+fp4 threads=1", "it is not a CPU target of this build"),
        ("cpu:altivec threads=1", "its instruction set is unknown here"),
        ("cpu:portable threads=many", "it is not a CPU target of this build"),
        ("cpu:portable threads=0", "it was compiled for fewer threads than this device has"),
    ];
    for (target, reason) in cases {
        let expected = format!("the Program was compiled for '{target}', which this device cannot run: {reason}");
        assert_eq!(refusal(with_target(target), &store), expected);
    }
    let other_build = Program { build: "precast 0.0.0".to_string(), ..program.clone() };
    let sentence = refusal(other_build, &store);
    assert!(sentence.starts_with("the Program was compiled by 'precast 0.0.0'; this is 'precast "), "{sentence}");
    assert!(sentence.ends_with("': compile it again"), "{sentence}");
    for isa in Isa::ALL.into_iter().filter(|isa| !isa.is_supported()) {
        let sentence = refusal(with_target(&format!("cpu:{} threads=1", isa.name())), &store);
        assert!(sentence.ends_with("this CPU does not have its instructions"), "{sentence}");
    }
}

#[test]
fn strict_numerics_keep_sums_plain_and_load_again() {
    let mut graph = Graph::new("");
    let ty = |dims: [usize; 4]| Type::new(DType::F32, dims);
    let x = graph.add_input("x", ty([1, 16, 24, 24]));
    let filter = graph.add_constant(Tensor::from_vec([16, 16, 3, 3], vec![0.5f32; 16 * 16 * 9]).unwrap());
    let (one, pad) = (vec![1, 1], vec![1.into(), 1.into()]);
    let conv = Conv { stride: one.clone(), pad_lo: pad.clone(), pad_hi: pad, dilation: one, groups: 1 };
    let y = graph.add(conv, &[x, filter], &Default::default()).unwrap();
    graph.add_output("y", y);
    for (is_strict, kernel) in [(false, "conv.winograd4"), (true, "conv")] {
        let store = MemoryStore::default();
        let numerics = Numerics { is_strict, ..Numerics::default() };
        let options = PassOptions { numerics, ..PassOptions::default() };
        let target = CpuTarget::new(Isa::Portable, 1, options);
        let program = target.compile(&graph, &Bucket::default(), &store).unwrap();
        assert_eq!(program.steps[0].kernel, kernel);
        load(program, &store).unwrap();
    }
}

#[test]
fn contradicting_numerics_are_refused_with_a_sentence() {
    let refused = |numerics: Numerics| {
        let options = PassOptions { numerics, ..PassOptions::default() };
        let target = CpuTarget::new(Isa::Portable, 1, options);
        target.compile(&graph(), &Bucket::default(), &MemoryStore::default()).unwrap_err().to_string()
    };
    let bf16 = Numerics { weights: WeightPrecision::Bf16, ..Numerics::default() };
    let both = Numerics { is_strict: true, ..bf16 };
    assert_eq!(refused(both), "strict numerics round as the model is written; bf16 weights do not");
}

#[test]
fn bf16_products_come_near_and_survive_their_file() {
    let mut graph = Graph::new("");
    let x = graph.add_input("x", Type::new(DType::F32, [5, 48]));
    let weights: Vec<f32> = (0..48 * 40).map(|at| ((at * 7919) % 2003) as f32 / 1001.0 - 1.0).collect();
    let weights = graph.add_constant(Tensor::from_vec([48, 40], weights).unwrap());
    let op = precast_ir::op::Matmul { transpose_a: false, transpose_b: false };
    let product = graph.add(op, &[x, weights], &Default::default()).unwrap();
    graph.add_output("y", product);
    let input: Vec<f32> = (0..240).map(|at| (at as f32 * 0.37).sin()).collect();
    let run = |weights: WeightPrecision| {
        let numerics = Numerics { weights, ..Numerics::default() };
        let target = CpuTarget::new(Isa::detect(), 1, PassOptions { numerics, ..PassOptions::default() });
        let store = MemoryStore::default();
        let program = decode(&encode(&target.compile(&graph, &Bucket::default(), &store).unwrap())).unwrap();
        let (kernel, arena_bytes) = (program.steps[0].kernel.clone(), program.arena_bytes);
        let loaded = load(program, &store).unwrap();
        let mut output = vec![0.0_f32; 5 * 40];
        let (inputs, mut outputs) = ([bytemuck::cast_slice(&input)], [bytemuck::cast_slice_mut(&mut output)]);
        CpuDevice::new(1).context(arena_bytes).run(&*loaded, &inputs, &mut outputs).unwrap();
        (kernel, output)
    };
    let ((_, exact), (kernel, near)) = (run(WeightPrecision::F32), run(WeightPrecision::Bf16));
    assert_eq!(kernel, "gemm.bf16");
    for (exact, near) in exact.iter().zip(&near) {
        assert!((exact - near).abs() < 0.05, "{near} for {exact}");
    }
}

#[test]
fn a_program_for_fewer_threads_is_refused() {
    let store = MemoryStore::default();
    let error = CpuDevice::new(2).load(&Arc::new(compile(&store)), &store).err().unwrap();
    assert!(error.to_string().ends_with("fewer threads than this device has"), "{error}");
}

#[test]
fn a_missing_constant_is_named() {
    let program = compile(&MemoryStore::default());
    let sentence = refusal(program, &MemoryStore::default());
    assert!(sentence.starts_with("the store has no constant "), "{sentence}");
}

#[test]
fn edited_steps_are_refused() {
    let store = MemoryStore::default();
    let program = compile(&store);
    let with_step = |kernel: &str, edit: &dyn Fn(&str) -> String| {
        let mut program = program.clone();
        let step = program.steps.iter_mut().find(|step| step.kernel.starts_with(kernel)).unwrap();
        let before = String::from_utf8(step.parameters.clone()).unwrap();
        let after = edit(&before);
        assert_ne!(before, after, "{kernel}: nothing to edit");
        step.parameters = after.into_bytes();
        program
    };
    let cases: [(&str, &str, &str, &str); 6] = [
        ("pool.max", "f32[1,4,6,6]", "f32[1,4,7,7]", "bytes; its text says"),
        ("softmax", "f32[24,7]", "f32[24,n]", "has no size in bytes"),
        ("softmax", "softmax(", "soft_max(", "there is no op 'soft_max'"),
        ("softmax", "axis=1", "axis=2", "axis"),
        ("gather", "gather(%0, %1)", "gather(%0, %2)", "%2 is not defined here"),
        ("gather", "f32[", "f64[", "bytes; its text says"),
    ];
    for (kernel, from, to, reason) in cases {
        let sentence = refusal(with_step(kernel, &|text| text.replace(from, to)), &store);
        assert!(sentence.starts_with("the Program is malformed: step "), "{sentence}");
        assert!(sentence.contains(reason), "{sentence}");
    }
    let renamed = {
        let mut program = program.clone();
        program.steps[0].kernel = "conv.fast".to_string();
        program
    };
    assert!(refusal(renamed, &store).contains("this build makes the kernel"));
}

/// Numbers at which sizes and strides overflow or vanish.
const EXTREMES: [&str; 8] =
    ["0", "1", "2147483648", "4294967296", "9223372036854775807", "18446744073709551615", "-1", "-9223372036854775808"];

/// Replaces the number that begins at or after a place.
fn replace_number(text: &mut Vec<u8>, at: usize, number: &str) {
    let Some(start) = text[at..].iter().position(u8::is_ascii_digit).map(|skipped| at + skipped) else { return };
    let length = text[start..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    text.splice(start..start + length, number.bytes());
}

/// What a random edit writes: digits and what the text form has a meaning for, to reach further than the parser.
const EDITS: &[u8] = b"0123456789-,.[](){}=%\"xcn efiu~\xff";

#[test]
fn random_edits_of_the_text_never_panic() {
    let store = MemoryStore::default();
    let program = compile(&store);
    let device = CpuDevice::new(1);
    let mut state = 12345u64;
    let mut next = |limit: usize| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as usize % limit
    };
    let (mut loaded_count, mut refused_count) = (0, 0);
    for _ in 0..2000 {
        let mut program = program.clone();
        let step = next(program.steps.len());
        let text = &mut program.steps[step].parameters;
        for _ in 0..1 + next(3) {
            let (at, byte) = (next(text.len()), EDITS[next(EDITS.len())]);
            match next(6) {
                0 => text.insert(at, byte),
                1 => drop(text.remove(at)),
                2 | 3 => text[at] = byte,
                _ => replace_number(text, at, EXTREMES[next(EXTREMES.len())]),
            }
        }
        match device.load(&Arc::new(program), &store) {
            Err(_) => refused_count += 1,
            Ok(loaded) => {
                loaded_count += 1;
                // What was loaded has sizes that fit, so it runs, or says what it met.
                let _ = run(&*loaded);
            }
        }
    }
    assert!(loaded_count > 20 && refused_count > 1000, "{loaded_count} loaded, {refused_count} refused");
}

#[test]
fn parts_of_a_concatenation_are_written_where_they_lie_in_it() {
    let graph = r#"graph ""(%0 "x": f32[1,4,4,4]) {
  %1 = softmax(%0) {axis=3, log=false} : f32[1,4,4,4]
  %2 = slice(%1) {start=[0, 2, 0, 0], step=[1, 1, 1, 1], size=[1, 2, 4, 4]} : f32[1,2,4,4]
  %3 = softmax(%2) {axis=2, log=false} : f32[1,2,4,4]
  %4 = concat(%1, %3) {axis=1} : f32[1,6,4,4]
  %5 = softmax(%4) {axis=1, log=false} : f32[1,6,4,4]
  return "y" %5
}
"#;
    let graph = text::parse(graph, &NoConstants).unwrap();
    let program = target(Isa::Portable, 1).compile(&graph, &Bucket::default(), &MemoryStore::default()).unwrap();
    let arena = |offset: u64, bytes: u64| Slot { place: Place::Arena(offset), bytes };
    let output = Slot { place: Place::Output(0), bytes: 384 };
    let slots: Vec<(Vec<Slot>, Vec<Slot>)> =
        program.steps.iter().map(|step| (step.reads.clone(), step.writes.clone())).collect();
    assert_eq!(slots[0].1, [arena(0, 256)]);
    assert_eq!(slots[1], (vec![arena(128, 128)], vec![arena(256, 128)]));
    assert_eq!(slots[2], (vec![arena(0, 384)], vec![output]));
    assert_eq!((program.steps.len(), program.arena_bytes), (3, 384));
}
