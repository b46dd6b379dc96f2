//! What a run through ONNX Runtime and the plugin costs beside the same run of our own Session: a client of the C interface
//! that loads the library of a wheel. Started by `cargo xtask bench ep`; prints one line of JSON.
//!
//! overhead RUNTIME PLUGIN MODEL...
#![allow(unsafe_code, reason = "a client of a C interface")]
#![allow(clippy::expect_used, reason = "a measurement that cannot be made ends the program")]

use std::ffi::{CString, c_char, c_int, c_void};
use std::path::Path;
use std::ptr::{null, null_mut};
use std::time::Instant;

use precast::{Argument, DType, Model, ModelSession, OpenOptions, Tensor};
use precast_ort_ep::abi::{OrtApiBase, OrtEpDevice, OrtSessionOptions, OrtStatus, OrtValue};
use precast_ort_ep::given_table;
use serde_json::json;

given_table! {
    /// The slots that a client uses.
    ClientApi {
        /// The text of a status.
        2 get_error_message(status: *const OrtStatus) -> *const c_char;
        /// Makes an environment.
        3 create_env(level: c_int, name: *const c_char, env: *mut *mut c_void) -> *mut OrtStatus;
        /// Makes a session of a file.
        7 create_session(env: *const c_void, path: *const c_char, options: *const OrtSessionOptions, session: *mut *mut c_void) -> *mut OrtStatus;
        /// Runs once.
        9 run(session: *mut c_void, options: *const c_void, input_names: *const *const c_char, inputs: *const *const OrtValue, input_count: usize, output_names: *const *const c_char, output_count: usize, outputs: *mut *mut OrtValue) -> *mut OrtStatus;
        /// Makes options.
        10 create_session_options(options: *mut *mut OrtSessionOptions) -> *mut OrtStatus;
        /// Threads inside a node.
        24 set_intra_op_threads(options: *mut OrtSessionOptions, count: c_int) -> *mut OrtStatus;
        /// A tensor of the caller's memory.
        49 create_tensor(info: *const c_void, data: *mut c_void, bytes: usize, sizes: *const i64, rank: usize, element: c_int, value: *mut *mut OrtValue) -> *mut OrtStatus;
        /// The host's memory.
        69 create_cpu_memory_info(allocator: c_int, kind: c_int, info: *mut *mut c_void) -> *mut OrtStatus;
        /// Ends a session.
        95 release_session(session: *mut c_void);
        /// Sets an entry of the configuration.
        130 add_session_config_entry(options: *mut OrtSessionOptions, key: *const c_char, value: *const c_char) -> *mut OrtStatus;
        /// Runs what is bound.
        133 run_with_binding(session: *mut c_void, options: *const c_void, binding: *const c_void) -> *mut OrtStatus;
        /// Makes a binding.
        134 create_io_binding(session: *mut c_void, binding: *mut *mut c_void) -> *mut OrtStatus;
        /// Ends a binding.
        135 release_io_binding(binding: *mut c_void);
        /// Binds an input.
        136 bind_input(binding: *mut c_void, name: *const c_char, value: *const OrtValue) -> *mut OrtStatus;
        /// Binds an output.
        137 bind_output(binding: *mut c_void, name: *const c_char, value: *const OrtValue) -> *mut OrtStatus;
        /// Loads a plugin.
        301 register_library(env: *mut c_void, name: *const c_char, path: *const c_char) -> *mut OrtStatus;
        /// Providers on hardware.
        303 get_ep_devices(env: *const c_void, devices: *mut *const *const OrtEpDevice, count: *mut usize) -> *mut OrtStatus;
        /// Has a session use providers.
        304 append_provider(options: *mut OrtSessionOptions, env: *mut c_void, devices: *const *const OrtEpDevice, device_count: usize, keys: *const *const c_char, values: *const *const c_char, count: usize) -> *mut OrtStatus;
        /// Name of a provider.
        312 ep_device_name(device: *const OrtEpDevice) -> *const c_char;
    }
}

/// Rounds of every way to run, taken in turn; the best counts.
const ROUNDS: usize = 25;
/// Seconds of one round.
const ROUND_SECONDS: f64 = 0.02;
/// `ONNXTensorElementDataType` of f32, which every measured model has.
const ELEMENT_FLOAT: c_int = 1;

/// A runtime with the plugin registered.
struct Client {
    api: ClientApi,
    env: *mut c_void,
    devices: Vec<*const OrtEpDevice>,
    memory: *mut c_void,
}

impl Client {
    fn open(runtime: &libloading::Library, plugin: &str) -> Client {
        type GetBase = unsafe extern "C" fn() -> *const OrtApiBase;
        // SAFETY: every runtime exports the function, of this type.
        let base = unsafe { runtime.get::<GetBase>(b"OrtGetApiBase\0") }.expect("the library is a runtime");
        // SAFETY: it takes nothing and gives a table that stays.
        let base = unsafe { &*base() };
        // SAFETY: every runtime that the plugin supports has this version.
        let api = unsafe { ClientApi::new((base.get_api)(precast_ort_ep::abi::API_VERSION_MIN)) };
        let (mut env, mut memory, mut all, mut count) = (null_mut(), null_mut(), null(), 0);
        // SAFETY: texts end in zeros, and what is written is ours.
        unsafe {
            check(api, api.create_env(3, c"overhead".as_ptr(), &mut env));
            check(api, api.register_library(env, c"precast".as_ptr(), text(plugin).as_ptr()));
            check(api, api.get_ep_devices(env, &mut all, &mut count));
            check(api, api.create_cpu_memory_info(0, 0, &mut memory));
        }
        // SAFETY: there are as many devices as are said.
        let all = unsafe { std::slice::from_raw_parts(all, count) }.iter().copied();
        // SAFETY: names of devices are texts that stay.
        let is_ours = |device: &*const OrtEpDevice| unsafe { std::ffi::CStr::from_ptr(api.ep_device_name(*device)) } == c"PrecastExecutionProvider";
        Client { api, env, devices: all.filter(is_ours).collect(), memory }
    }

    /// A session of a file, on the plugin or on the runtime's own kernels.
    fn session(&self, path: &Path, is_plugin: bool) -> *mut c_void {
        let (mut options, mut session) = (null_mut(), null_mut());
        let (keys, values) = ([c"cache.mode".as_ptr()], [c"off".as_ptr()]);
        let path = text(&path.display().to_string());
        // SAFETY: texts end in zeros, lists are as long as is said, and what is written is ours.
        unsafe {
            check(self.api, self.api.create_session_options(&mut options));
            check(self.api, self.api.set_intra_op_threads(options, 1));
            if is_plugin {
                let (key, one) = (c"session.disable_cpu_ep_fallback", c"1");
                check(self.api, self.api.add_session_config_entry(options, key.as_ptr(), one.as_ptr()));
                let (devices, count) = (self.devices.as_ptr(), self.devices.len());
                let status =
                    self.api.append_provider(options, self.env, devices, count, keys.as_ptr(), values.as_ptr(), 1);
                check(self.api, status);
            }
            check(self.api, self.api.create_session(self.env, path.as_ptr(), options, &mut session));
        }
        session
    }

    fn value(&self, tensor: &mut Buffer) -> *mut OrtValue {
        let mut value = null_mut();
        let (data, bytes) = (tensor.elements.as_mut_ptr().cast(), size_of_val(&tensor.elements[..]));
        // SAFETY: the memory is that of a buffer that stays where it is.
        let status = unsafe {
            self.api.create_tensor(
                self.memory,
                data,
                bytes,
                tensor.sizes.as_ptr(),
                tensor.sizes.len(),
                ELEMENT_FLOAT,
                &mut value,
            )
        };
        check(self.api, status);
        value
    }
}

/// A tensor of the program's.
struct Buffer {
    name: CString,
    elements: Vec<f32>,
    sizes: Vec<i64>,
    shape: Vec<usize>,
}

impl Buffer {
    fn new(name: &str, shape: &[usize]) -> Buffer {
        let elements = (0..shape.iter().product()).map(|index: usize| (index % 7) as f32).collect();
        Buffer {
            name: text(name),
            elements,
            sizes: shape.iter().map(|&size| size as i64).collect(),
            shape: shape.to_vec(),
        }
    }
}

fn text(text: &str) -> CString {
    CString::new(text).expect("no zero inside")
}

fn check(api: ClientApi, status: *mut OrtStatus) {
    if !status.is_null() {
        // SAFETY: a status has a text.
        let text = unsafe { std::ffi::CStr::from_ptr(api.get_error_message(status)) };
        eprintln!("onnxruntime: {}", text.to_string_lossy());
        std::process::exit(1);
    }
}

/// A way to run once, and its name.
type Way<'a> = (&'static str, Box<dyn FnMut() + 'a>);

/// Microseconds of one call, as the best round has it.
fn best_of(ways: &mut [Way<'_>]) -> Vec<(&'static str, f64)> {
    let mut best = vec![f64::INFINITY; ways.len()];
    for _ in 0..ROUNDS {
        for ((_, run), best) in ways.iter_mut().zip(&mut best) {
            let (begin, mut runs) = (Instant::now(), 0u32);
            while begin.elapsed().as_secs_f64() < ROUND_SECONDS {
                (0..16).for_each(|_| run());
                runs += 16;
            }
            *best = best.min(begin.elapsed().as_secs_f64() * 1e6 / f64::from(runs));
        }
    }
    ways.iter().map(|(name, _)| *name).zip(best).collect()
}

/// Measures one model.
fn measure(client: &Client, path: &Path) -> serde_json::Value {
    let model = Model::open(path).expect("the model opens");
    let own = ModelSession::open(&model, &OpenOptions::default()).expect("the model compiles");
    let one = |dim: &precast::Dim| dim.as_usize().unwrap_or(1);
    let buffer = |input: &precast::InputInfo| {
        assert_eq!(input.dtype, DType::F32, "measured models are of floats");
        let shape: Vec<usize> = input.dims.iter().flatten().map(one).collect();
        Buffer::new(&input.name, &shape)
    };
    let mut inputs: Vec<Buffer> = model.inputs().expect("inputs").iter().map(buffer).collect();
    let named = |buffer: &Buffer| {
        let tensor = Tensor::from_vec(buffer.shape.clone(), buffer.elements.clone()).expect("a tensor");
        (buffer.name.to_string_lossy().into_owned(), tensor)
    };
    let (answers, _) = own.run(&inputs.iter().map(named).collect::<Vec<_>>()).expect("a run");
    let mut outputs: Vec<Buffer> = answers.iter().map(|(name, tensor)| Buffer::new(name, tensor.shape())).collect();

    let (plugin, cpu) = (client.session(path, true), client.session(path, false));
    let input_values: Vec<*mut OrtValue> = inputs.iter_mut().map(|buffer| client.value(buffer)).collect();
    let output_values: Vec<*mut OrtValue> = outputs.iter_mut().map(|buffer| client.value(buffer)).collect();
    let bind = |session| {
        let mut binding = null_mut();
        // SAFETY: the session lives, names end in zeros, and values stay.
        unsafe {
            check(client.api, client.api.create_io_binding(session, &mut binding));
            for (buffer, value) in inputs.iter().zip(&input_values) {
                check(client.api, client.api.bind_input(binding, buffer.name.as_ptr(), *value));
            }
            for (buffer, value) in outputs.iter().zip(&output_values) {
                check(client.api, client.api.bind_output(binding, buffer.name.as_ptr(), *value));
            }
        }
        binding
    };
    let (plugin_binding, cpu_binding) = (bind(plugin), bind(cpu));
    let form = own.forms().into_iter().next().expect("the model is one Session");
    let arguments: Vec<Argument<'_>> = form
        .inputs()
        .iter()
        .map(|name| {
            let buffer = inputs.iter().find(|buffer| buffer.name.to_bytes() == name.as_bytes()).expect("an input");
            Argument { dtype: DType::F32, shape: &buffer.shape, bytes: bytemuck::cast_slice(&buffer.elements) }
        })
        .collect();
    let mut own_outputs: Vec<Vec<f32>> = outputs.iter().map(|buffer| buffer.elements.clone()).collect();
    let input_names: Vec<*const c_char> = inputs.iter().map(|buffer| buffer.name.as_ptr()).collect();
    let output_names: Vec<*const c_char> = outputs.iter().map(|buffer| buffer.name.as_ptr()).collect();
    let given: Vec<*const OrtValue> = input_values.iter().map(|value| value.cast_const()).collect();
    let api = client.api;
    let bound = |session, binding| {
        // SAFETY: both live, and what is bound stays.
        move || check(api, unsafe { api.run_with_binding(session, null(), binding) })
    };
    let mut slices: Vec<&mut [u8]> =
        own_outputs.iter_mut().map(|output| bytemuck::cast_slice_mut(&mut output[..])).collect();
    let mut ways: Vec<Way<'_>> = vec![
        (
            "own",
            Box::new(|| {
                form.session().run_into(&arguments, &mut slices).expect("a run");
            }),
        ),
        ("plugin_binding", Box::new(bound(plugin, plugin_binding))),
        ("cpu_binding", Box::new(bound(cpu, cpu_binding))),
        (
            "plugin_run",
            Box::new(|| {
                let mut written = output_values.clone();
                let (inputs, outputs) = (given.len(), written.len());
                // SAFETY: lists are as long as is said, and values stay.
                check(api, unsafe {
                    api.run(
                        plugin,
                        null(),
                        input_names.as_ptr(),
                        given.as_ptr(),
                        inputs,
                        output_names.as_ptr(),
                        outputs,
                        written.as_mut_ptr(),
                    )
                });
            }),
        ),
    ];
    let times = best_of(&mut ways);
    drop(ways);
    let time = |wanted: &str| times.iter().find(|(name, _)| *name == wanted).map_or(f64::NAN, |(_, time)| *time);
    let tensors = inputs.len() + outputs.len();
    // SAFETY: neither is used again.
    unsafe {
        api.release_io_binding(plugin_binding);
        api.release_io_binding(cpu_binding);
        api.release_session(plugin);
        api.release_session(cpu);
    }
    json!({
        "model": path.file_stem().map(|stem| stem.to_string_lossy()),
        "tensors": tensors,
        "own_us": time("own"),
        "plugin_binding_us": time("plugin_binding"),
        "plugin_run_us": time("plugin_run"),
        "cpu_binding_us": time("cpu_binding"),
        "overhead_us": time("plugin_binding") - time("own"),
        "allowed_us": 2.0 + 0.1 * tensors as f64,
    })
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let [runtime, plugin, models @ ..] = &arguments[..] else {
        eprintln!("usage: overhead RUNTIME PLUGIN MODEL...");
        return;
    };
    // SAFETY: the library is a runtime, whose start does nothing that matters here.
    let library = unsafe { libloading::Library::new(runtime) }.expect("the runtime loads");
    let client = Client::open(&library, plugin);
    let measured: Vec<serde_json::Value> = models.iter().map(|model| measure(&client, Path::new(model))).collect();
    println!("{}", json!({ "models": measured }));
}
