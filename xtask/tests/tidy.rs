//! Rules about the source that no compiler checks. Each test names every line that breaks its rule.
#![allow(clippy::unwrap_used, reason = "the whole file is a test")]

use std::fs;
use std::path::{Path, PathBuf};

/// The one file of the product that may read the environment, and which variables: the terminal's and the user's folders.
/// Tests are told by it which device to run on, and are given further folders of libraries.
const ENVIRONMENT: &[(&str, &[&str])] = &[
    ("crates/cli/src/output.rs", &["HOME", "XDG_CACHE_HOME", "NO_COLOR", "TERM", "COLUMNS"]),
    ("crates/ort-ep/src/environment.rs", &["HOME", "XDG_CACHE_HOME", "ORT_MIGRAPHX_"]),
    ("crates/ort-ep/build.rs", &["CARGO_CFG_TARGET_OS"]),
    ("crates/gpu/tests/host/device.rs", &["PRECAST_TEST_DEVICE", "PRECAST_TEST_LIBRARY"]),
    ("xtask/src/test.rs", &["LD_LIBRARY_PATH"]),
];

/// Where unsafe code may lie.
const UNSAFE_ROOMS: &[&str] = &[
    "crates/kernels/",
    "crates/driver/",
    "crates/fake-driver/",
    "crates/hip-on-cuda/",
    "crates/ort-ep/",
    "crates/gpu/tests/host/device.rs",
    "crates/gpu/src/context/",
    "crates/gpu/src/memory.rs",
    "crates/python/src/dlpack.rs",
    "crates/python/src/gpu_place.rs",
    "crates/python/src/host_array.rs",
    "crates/python/src/ort_value.rs",
    "crates/python/src/request.rs",
    "crates/python/src/session.rs",
    "crates/tensor/src/mapping.rs",
];

/// Who may wait for connections: a test's proxy in front of a store. The product has no server, so no route, no memory that is
/// shared with clients and no interface to manage it can be open (rows H14 and H16 of docs/hostile.md).
const LISTENERS: &[&str] = &["xtask/src/torture/cache_s3.rs"];

/// Longest file.
const FILE_LINES_MAX: usize = 1000;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// Every file of the checkout that git would keep: path from the root, and text.
fn files(extensions: &[&str]) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut folders: Vec<PathBuf> = vec![root().to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap().to_string();
            if path.is_dir() {
                if !matches!(name.as_str(), "target" | ".git" | ".cache") {
                    folders.push(path);
                }
            } else if extensions.iter().any(|extension| name.ends_with(extension)) {
                let relative = path.strip_prefix(root()).unwrap().to_str().unwrap().to_string();
                found.push((relative, fs::read_to_string(&path).unwrap()));
            }
        }
    }
    found.sort();
    found
}

/// Lines of Rust files, this one apart, that break a rule. Comments are no code.
fn broken_lines(is_broken: impl Fn(&str, &str) -> bool) -> Vec<String> {
    let mut broken = Vec::new();
    for (path, text) in files(&[".rs"]).iter().filter(|(path, _)| path != "xtask/tests/tidy.rs") {
        for (index, line) in text.lines().enumerate() {
            let code = line.split("//").next().unwrap();
            if is_broken(path, code) {
                broken.push(format!("{path}:{}: {}", index + 1, line.trim()));
            }
        }
    }
    broken
}

fn assert_none(broken: &[String]) {
    assert!(broken.is_empty(), "{} places:\n{}", broken.len(), broken.join("\n"));
}

#[test]
fn nothing_listens() {
    let words =
        ["TcpListener", "UdpSocket", "UnixListener", "UnixDatagram", "tokio::net", "socket::listen", "shm_open"];
    assert_none(&broken_lines(|path, code| words.iter().any(|word| code.contains(word)) && !LISTENERS.contains(&path)));
    let servers = ["hyper", "axum", "tonic", "actix-web", "warp", "tiny_http", "rouille"];
    let is_server = |line: &str| {
        let name = line.split(['=', '.', ' ']).next().unwrap_or_default();
        servers.contains(&name)
    };
    let manifests = files(&["Cargo.toml"]);
    let broken = manifests.iter().filter(|(_, text)| text.lines().any(is_server));
    assert_none(&broken.map(|(path, _)| path.clone()).collect::<Vec<String>>());
}

#[test]
fn the_environment_is_read_only_where_the_list_says() {
    assert_none(&broken_lines(|path, code| {
        let is_read =
            ["env::var(", "env::var_os(", "env::vars(", "env::vars_os("].iter().any(|read| code.contains(read));
        let is_allowed = ENVIRONMENT.iter().any(|(file, variables)| {
            path == *file && variables.iter().any(|variable| code.contains(&format!("\"{variable}\"")))
        });
        is_read && !is_allowed
    }));
}

#[test]
fn no_file_is_longer_than_a_reader_can_hold() {
    let long = files(&[".rs", ".py"]).into_iter().filter(|(_, text)| text.lines().count() > FILE_LINES_MAX);
    assert_none(&long.map(|(path, text)| format!("{path}: {} lines", text.lines().count())).collect::<Vec<String>>());
}

#[test]
fn nothing_is_left_to_do() {
    assert_none(&broken_lines(|_, code| code.contains("todo!(") || code.contains("unimplemented!(")));
}

#[test]
fn unsafe_code_lies_in_its_rooms() {
    assert_none(&broken_lines(|path, code| {
        let is_unsafe = ["unsafe {", "unsafe fn", "unsafe impl", "unsafe trait", "unsafe extern", "allow(unsafe_code"]
            .iter()
            .any(|form| code.contains(form));
        is_unsafe && !UNSAFE_ROOMS.iter().any(|room| path.starts_with(room))
    }));
}

#[test]
fn no_test_is_ignored() {
    assert_none(&broken_lines(|_, code| code.contains(concat!("#[", "ignore"))));
}

#[test]
fn nothing_needs_a_folder_beside_the_checkout() {
    let texts = files(&[".rs", ".py", ".toml", ".sh", ".json", ".yml", ".yaml", ".txt", "run"]);
    let broken = texts
        .iter()
        .filter(|(path, _)| path != "xtask/tests/tidy.rs")
        .filter(|(_, text)| text.contains(concat!("..", "/shared")));
    assert_none(&broken.map(|(path, _)| path.clone()).collect::<Vec<String>>());
}

/// Where names of devices are written as texts: the one table that reads them, and where vendors and targets say their own.
const DEVICE_NAME_FILES: &[&str] = &[
    "crates/precast/src/device_name.rs",
    "crates/driver/src/library.rs",
    "crates/gpu/src/target.rs",
    "crates/cpu/src/target.rs",
    "crates/program/src/target.rs",
    "crates/generate/src/config/tests.rs",
    // What a script asks of ONNX Runtime.
    "crates/cli/src/onnxruntime.rs",
    // What ONNX Runtime calls the memory that values lie in, and which kind of device a provider may take.
    "crates/python/src/io_binding.rs",
    "crates/python/src/ort_value.rs",
    "crates/precast/src/provider_options/settings.rs",
    "crates/precast/src/provider_options/tests.rs",
];

/// What people call devices.
const DEVICE_NAMES: &[&str] = &[
    "cpu",
    "gpu",
    "cuda",
    "nvidia",
    "tensorrt",
    "nvtensorrtrtx",
    "hip",
    "rocm",
    "amdgpu",
    "amd",
    "migraphx",
    "dml",
    "webgpu",
    "openvino",
    "qnn",
    "vitisai",
    "ryzenai",
    "coreml",
    "xnnpack",
    "js",
];

#[test]
fn names_of_devices_are_read_in_one_table() {
    let is_product = |path: &str| {
        let is_for_tests = ["crates/fake-driver/", "crates/hip-on-cuda/", "crates/testing/"];
        path.starts_with("crates/") && path.contains("/src/") && !is_for_tests.iter().any(|room| path.starts_with(room))
    };
    assert_none(&broken_lines(|path, code| {
        // Our own provider is no device.
        let code = code.to_ascii_lowercase().replace("precastexecutionprovider", "");
        let is_named = DEVICE_NAMES.iter().any(|name| code.contains(&format!("\"{name}\"")));
        let is_named = is_named || code.contains("executionprovider");
        is_named && is_product(path) && !DEVICE_NAME_FILES.contains(&path)
    }));
}
