//! Inputs of a run: their shapes from flags, files and a rule for what nobody gave; their values from files or made up.
//! Everything that is made up is announced with the flag that sets it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use precast::suggestion::listed;
use precast::{Bindings, Bucket, DType, Dim, InputInfo, Symbol, Tensor, Type, read_archive, read_tensor};

use crate::args::{InputArgs, ShapeArgs};
use crate::exit::{Exit, Failure};
use crate::output::{Console, names_text};

/// A symbol of axis 0 that nobody gave a number: one row.
const GUESS_ROWS: usize = 1;
/// Any other symbol that nobody gave a number.
const GUESS_SIZE: usize = 64;
/// Inputs that are made up may have this many bytes together.
const MADE_BYTES_MAX: usize = 8 << 30;

/// Inputs for one run.
pub struct Inputs {
    /// Their values, in the order of the model.
    pub tensors: Vec<(String, Tensor)>,
    /// Numbers of the model's symbols.
    pub bucket: Bucket,
    /// Sizes that nobody gave.
    pub guesses: Vec<Guess>,
}

/// A size that nobody gave.
pub struct Guess {
    /// The symbol.
    pub dim: String,
    /// The size it is taken for.
    pub size: usize,
    /// Whether it is axis 0 of an input.
    pub is_row: bool,
}

impl Inputs {
    /// The failure with a word about guesses, which may be what is wrong with the model.
    pub fn explain(&self, failure: Failure) -> Failure {
        if failure.exit != Exit::Model || self.guesses.is_empty() {
            return failure;
        }
        let flags = flags(&self.guesses);
        Failure::new(failure.exit, format!("{}\nsizes were guessed; others may fit: {flags}", failure.message))
    }
}

/// The flags that would have set what was guessed.
fn flags(guesses: &[Guess]) -> String {
    let flags: Vec<String> = guesses.iter().map(|guess| dim_flag(&guess.dim, guess.size)).collect();
    flags.join(" ")
}

/// The flag that sets a dim, as a shell takes it.
pub fn dim_flag(dim: &str, size: usize) -> String {
    let is_plain = dim.chars().all(|c| c.is_ascii_alphanumeric() || "_.-:/".contains(c));
    if is_plain { format!("--dim {dim}={size}") } else { format!("--dim '{dim}={size}'") }
}

/// Where the values of one input come from.
enum Source {
    Tensor(Tensor),
    Zeros,
    Ones,
    Random,
}

/// Makes the inputs that a model or Program declares.
pub fn make_inputs(declared: &[InputInfo], args: &InputArgs, console: &Console) -> Result<Inputs, Failure> {
    let sources = read_sources(declared, &args.inputs)?;
    let mut bindings = bind_flags(declared, &args.shapes)?;
    bind_tensors(declared, &args.shapes, &sources, &mut bindings)?;
    let guesses = guess_dims(declared, &args.shapes, &sources, &mut bindings);
    if !guesses.is_empty() {
        console.notice(&format!("sizes nobody gave are guessed: {}", flags(&guesses)));
    }
    let mut made_up = Vec::new();
    let mut tensors = Vec::new();
    let mut bytes: usize = 0;
    for (position, info) in declared.iter().enumerate() {
        let source = sources.get(&info.name);
        if let Some(Source::Tensor(tensor)) = source {
            tensors.push((info.name.clone(), tensor.clone()));
            continue;
        }
        let shape = shape_of(info, &args.shapes, &bindings)?;
        bytes = bytes.saturating_add(Type::new(info.dtype, shape.iter().copied()).size_bytes().unwrap_or(usize::MAX));
        if bytes > MADE_BYTES_MAX {
            let message =
                format!("input '{}': made-up inputs of more than {MADE_BYTES_MAX} bytes are refused", info.name);
            return Err(Failure::new(Exit::Limit, message));
        }
        let tensor = match source {
            Some(Source::Zeros) => Tensor::zeros(info.dtype, shape),
            Some(Source::Ones) => Tensor::full(info.dtype, shape, 1.0),
            Some(Source::Random | Source::Tensor(_)) | None => random(info, shape, args.seed, position),
        };
        if source.is_none() {
            made_up.push(info.name.clone());
        }
        tensors.push((info.name.clone(), tensor.map_err(precast::Error::from)?));
    }
    if !made_up.is_empty() {
        let (names, seed) = (names_text(&made_up), args.seed);
        console.notice(&format!("inputs nobody gave are random (--seed {seed}): {names}; --input NAME=FILE gives one"));
    }
    let bucket = Bucket::new(bindings.iter().map(|(symbol, number)| (symbol.as_str().to_string(), number)));
    Ok(Inputs { tensors, bucket, guesses })
}

/// Symbols that are axis 0 of some input.
pub fn row_symbols(declared: &[InputInfo]) -> BTreeSet<Symbol> {
    let first = declared.iter().filter_map(|info| info.dims.as_ref()?.first());
    first.flat_map(Dim::symbols).collect()
}

fn read_sources(declared: &[InputInfo], given: &[String]) -> Result<BTreeMap<String, Source>, Failure> {
    let mut sources = BTreeMap::new();
    for argument in given {
        let found = match argument.split_once('=') {
            Some((name, what)) => {
                let info = find(declared, name)?;
                let source = match what {
                    "zeros" => Source::Zeros,
                    "ones" => Source::Ones,
                    "random" => Source::Random,
                    file => Source::Tensor(read_tensor(&PathBuf::from(file), name, Some(info.dtype))?),
                };
                vec![(name.to_string(), source)]
            }
            None if argument.ends_with(".npz") => {
                let dtype_of = |name: &str| declared.iter().find(|info| info.name == name).map(|info| info.dtype);
                let arrays = read_archive(&PathBuf::from(argument), dtype_of)?;
                arrays.into_iter().map(|(name, tensor)| (name, Source::Tensor(tensor))).collect()
            }
            None => {
                return Err(Failure::usage(format!("--input {argument}: NAME=FILE or FILE.npz is expected")));
            }
        };
        for (name, source) in found {
            find(declared, &name)?;
            if sources.insert(name.clone(), source).is_some() {
                return Err(Failure::usage(format!("input '{name}' is given twice")));
            }
        }
    }
    Ok(sources)
}

/// Numbers that flags give to symbols; flags that contradict each other or the model are errors.
fn bind_flags(declared: &[InputInfo], args: &ShapeArgs) -> Result<Bindings, Failure> {
    let symbols: BTreeSet<Symbol> =
        declared.iter().flat_map(|info| info.dims.iter().flatten()).flat_map(Dim::symbols).collect();
    let mut bindings = Bindings::new();
    for (name, size) in &args.dims {
        if !symbols.contains(name.as_str()) {
            let names: Vec<&str> = symbols.iter().map(Symbol::as_str).collect();
            return Err(Failure::usage(format!(
                "--dim {name}={size}: there is no dim '{name}'; {}",
                listed(name, &names)
            )));
        }
        bind(&mut bindings, name, *size, &format!("--dim {name}={size}"))?;
    }
    for (name, sizes) in &args.shapes {
        let Some(dims) = &find(declared, name)?.dims else {
            continue;
        };
        bind_shape(&mut bindings, dims, sizes, &format!("--shape for '{name}'"))?;
    }
    Ok(bindings)
}

/// Numbers that given tensors imply. They may not contradict flags; among each other the first one counts, since names
/// of dims are only hints in many models.
fn bind_tensors(
    declared: &[InputInfo],
    args: &ShapeArgs,
    sources: &BTreeMap<String, Source>,
    bindings: &mut Bindings,
) -> Result<(), Failure> {
    let flags = bindings.clone();
    for info in declared {
        let (Some(Source::Tensor(tensor)), Some(dims)) = (sources.get(&info.name), &info.dims) else {
            continue;
        };
        let what = format!("the file for '{}'", info.name);
        let is_given = args.shapes.iter().find(|(name, _)| *name == info.name);
        if dims.len() == tensor.rank() {
            bind_shape(&mut flags.clone(), dims, tensor.shape(), &what)?;
        } else if is_given.is_none() {
            let (shape, rank) = (tensor.shape(), dims.len());
            return Err(Failure::usage(format!("{what} has the shape {shape:?}; the model expects rank {rank}")));
        }
        if is_given.is_some_and(|(_, sizes)| sizes != tensor.shape()) {
            return Err(Failure::usage(format!("{what} has the shape {:?}; --shape says otherwise", tensor.shape())));
        }
        for (dim, &size) in dims.iter().zip(tensor.shape()) {
            if let Some(symbol) = dim.as_symbol().filter(|symbol| bindings.get(symbol).is_none()) {
                bindings.insert(symbol, size as i64);
            }
        }
    }
    Ok(())
}

/// Gives numbers to what is still open.
fn guess_dims(
    declared: &[InputInfo],
    args: &ShapeArgs,
    sources: &BTreeMap<String, Source>,
    bindings: &mut Bindings,
) -> Vec<Guess> {
    let rows = row_symbols(declared);
    let mut guesses = Vec::new();
    for info in declared {
        let is_given = matches!(sources.get(&info.name), Some(Source::Tensor(_)))
            || args.shapes.iter().any(|(name, _)| *name == info.name);
        if is_given {
            continue;
        }
        for symbol in info.dims.iter().flatten().flat_map(Dim::symbols) {
            if bindings.get(&symbol).is_none() {
                let is_row = rows.contains(&symbol);
                let size = if is_row { GUESS_ROWS } else { GUESS_SIZE };
                guesses.push(Guess { dim: symbol.as_str().to_string(), size, is_row });
                bindings.insert(symbol, size as i64);
            }
        }
    }
    guesses
}

fn shape_of(info: &InputInfo, args: &ShapeArgs, bindings: &Bindings) -> Result<Vec<usize>, Failure> {
    if let Some((_, sizes)) = args.shapes.iter().find(|(name, _)| *name == info.name) {
        return Ok(sizes.clone());
    }
    let Some(dims) = &info.dims else {
        let name = &info.name;
        return Err(Failure::usage(format!(
            "input '{name}' has no declared rank; give its shape: --shape {name}:1x3x224x224"
        )));
    };
    let sizes = dims.iter().map(|dim| dim.eval(bindings).and_then(|size| usize::try_from(size).ok()));
    sizes.collect::<Option<_>>().ok_or_else(|| {
        let shape: Vec<String> = dims.iter().map(|dim| dim.bind(bindings).to_string()).collect();
        Failure::usage(format!("input '{}' would have the shape [{}]", info.name, shape.join(",")))
    })
}

fn bind_shape(bindings: &mut Bindings, dims: &[Dim], sizes: &[usize], what: &str) -> Result<(), Failure> {
    if dims.len() != sizes.len() {
        return Err(Failure::usage(format!("{what} has {} axes; the model declares {}", sizes.len(), dims.len())));
    }
    for (dim, &size) in dims.iter().zip(sizes) {
        if let Some(symbol) = dim.as_symbol() {
            bind(bindings, symbol.as_str(), size, what)?;
        } else if dim.eval(bindings).is_some_and(|number| number != size as i64) {
            return Err(Failure::usage(format!("{what} has {size} where the model declares {dim}")));
        }
    }
    Ok(())
}

fn bind(bindings: &mut Bindings, symbol: &str, size: usize, what: &str) -> Result<(), Failure> {
    match bindings.insert(symbol, size as i64) {
        Some(before) if before != size as i64 => {
            Err(Failure::usage(format!("{what} makes the dim '{symbol}' {size}; it is {before} already")))
        }
        Some(_) | None => Ok(()),
    }
}

fn find<'d>(declared: &'d [InputInfo], name: &str) -> Result<&'d InputInfo, Failure> {
    declared.iter().find(|info| info.name == name).ok_or_else(|| {
        let names: Vec<&str> = declared.iter().map(|info| info.name.as_str()).collect();
        Failure::usage(format!("there is no input '{name}'; {}", listed(name, &names)))
    })
}

/// Values that a model of unknown meaning is likeliest to accept: floats from 0 to 1; integers 0 or 1, which are valid
/// indices and tokens nearly everywhere. Masks and single integers are 1: a mask of zeros hides everything, and a single
/// integer is a length or a rate.
fn random(info: &InputInfo, shape: Vec<usize>, seed: u64, position: usize) -> Result<Tensor, precast::TensorError> {
    let count: usize = shape.iter().product();
    let mut generator = Generator(seed.wrapping_add((position as u64) << 32));
    let is_one = info.name.to_ascii_lowercase().contains("mask") || count == 1;
    let values: Vec<f64> = match info.dtype {
        dtype if dtype.is_float() => (0..count).map(|_| generator.unit()).collect(),
        DType::Bool => (0..count).map(|_| if is_one || generator.unit() < 0.5 { 1.0 } else { 0.0 }).collect(),
        _ => (0..count).map(|_| if is_one { 1.0 } else { (generator.unit() * 2.0).floor() }).collect(),
    };
    Tensor::from_f64(info.dtype, shape, &values, true)
}

/// SplitMix64: small, and the same on every machine.
struct Generator(u64);

impl Generator {
    /// From 0 to below 1.
    fn unit(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        // 24 bits stay below 1 after rounding to f32.
        ((mixed ^ (mixed >> 31)) >> 40) as f64 / (1_u64 << 24) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(name: &str, dtype: DType, dims: &[&str]) -> InputInfo {
        let dim = |text: &&str| text.parse::<i64>().map_or_else(|_| Dim::parse(text).unwrap(), Dim::from);
        InputInfo { name: name.to_string(), dtype, dims: Some(dims.iter().map(dim).collect()) }
    }

    fn console() -> Console {
        use clap::Parser;
        Console::new(&crate::args::Cli::parse_from(["precast", "-q", "check", "x"]).shared)
    }

    fn shapes(
        declared: &[InputInfo],
        dims: &[(&str, usize)],
        shape: &[(&str, &[usize])],
    ) -> Result<Vec<Vec<usize>>, String> {
        let args = InputArgs {
            inputs: Vec::new(),
            seed: 0,
            shapes: ShapeArgs {
                dims: dims.iter().map(|(name, size)| (name.to_string(), *size)).collect(),
                shapes: shape.iter().map(|(name, sizes)| (name.to_string(), sizes.to_vec())).collect(),
            },
        };
        let inputs = make_inputs(declared, &args, &console()).map_err(|failure| failure.message)?;
        Ok(inputs.tensors.iter().map(|(_, tensor)| tensor.shape().to_vec()).collect())
    }

    #[test]
    fn axis_0_is_guessed_as_one_and_the_rest_as_64() {
        let declared = [info("ids", DType::I64, &["n", "s"]), info("mask", DType::I64, &["n", "s + p"])];
        assert_eq!(shapes(&declared, &[], &[]), Ok(vec![vec![1, 64], vec![1, 128]]));
        assert_eq!(shapes(&declared, &[("s", 2), ("p", 3)], &[]), Ok(vec![vec![1, 2], vec![1, 5]]));
        assert_eq!(shapes(&declared, &[("p", 0)], &[("ids", &[4, 5])]), Ok(vec![vec![4, 5], vec![4, 5]]));
    }

    #[test]
    fn contradictions_and_unknown_names_are_errors() {
        let declared = [info("x", DType::F32, &["batch", "3"])];
        let message = |dims: &[(&str, usize)], shape: &[(&str, &[usize])]| shapes(&declared, dims, shape).unwrap_err();
        assert_eq!(
            message(&[("bach", 2)], &[]),
            "--dim bach=2: there is no dim 'bach'; there are 'batch'. Did you mean 'batch'?"
        );
        assert_eq!(message(&[], &[("y", &[1])]), "there is no input 'y'; there are 'x'. Did you mean 'x'?");
        assert_eq!(
            message(&[("batch", 2)], &[("x", &[4, 3])]),
            "--shape for 'x' makes the dim 'batch' 4; it is 2 already"
        );
        assert_eq!(message(&[], &[("x", &[4, 5])]), "--shape for 'x' has 5 where the model declares 3");
        assert_eq!(message(&[], &[("x", &[4])]), "--shape for 'x' has 1 axes; the model declares 2");
    }

    #[test]
    fn made_up_values_depend_on_the_seed_alone_and_stay_in_range() {
        let x = info("x", DType::F32, &["100"]);
        let a = random(&x, vec![100], 1, 0).unwrap();
        assert_eq!(a, random(&x, vec![100], 1, 0).unwrap());
        assert_ne!(a, random(&x, vec![100], 2, 0).unwrap());
        assert!(a.to_f64_vec().iter().all(|value| (0.0..1.0).contains(value)));
        let ids = random(&info("ids", DType::I64, &["100"]), vec![100], 1, 0).unwrap().to_i64_vec().unwrap();
        assert!(ids.contains(&0) && ids.contains(&1) && ids.iter().all(|id| (0..2).contains(id)));
        let mask = random(&info("attention_mask", DType::Bool, &["9"]), vec![9], 1, 0).unwrap();
        assert_eq!(mask, Tensor::full(DType::Bool, [9], 1.0).unwrap());
    }
}
