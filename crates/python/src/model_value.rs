//! Values beside tensors of numbers: strings are arrays of objects, sequences are lists, nothing is None.

use precast::{StringTensor, Value};
use pyo3::prelude::*;
use pyo3::types::{PyList, PyString};

use crate::exceptions::usage;
use crate::host_array::{array_of_tensor, copied_tensor, is_array};
use crate::ort_value::OrtValue;

/// Kinds of numpy's dtypes that hold texts: unicode, bytes and objects.
const TEXT_KINDS: [&str; 3] = ["U", "S", "O"];

/// A Python object as a value of a model. `name` is what it is given for.
pub fn value_of(name: &str, object: &Bound<'_, PyAny>) -> PyResult<Value> {
    let py = object.py();
    if object.is_none() {
        return Ok(Value::Nothing);
    }
    if let Ok(value) = object.cast::<OrtValue>() {
        return Ok(Value::Tensor(value.get().to_tensor(py)?));
    }
    if !is_array(object) && object.hasattr("__dlpack_device__")? {
        return Ok(Value::Tensor(OrtValue::from_dlpack(object)?.to_tensor(py)?));
    }
    if let Ok(list) = object.cast::<PyList>() {
        let elements = list.iter().enumerate();
        let elements = elements.map(|(place, element)| value_of(&format!("{name}[{place}]"), &element));
        return Ok(Value::Sequence(elements.collect::<PyResult<_>>()?));
    }
    let array = py.import("numpy")?.call_method1("asarray", (object,))?;
    let kind: String = array.getattr("dtype")?.getattr("kind")?.extract()?;
    if TEXT_KINDS.contains(&kind.as_str()) {
        return Ok(Value::Strings(strings_of(name, &array)?));
    }
    match copied_tensor(&array)? {
        Some(tensor) => Ok(Value::Tensor(tensor)),
        None => {
            let dtype = array.getattr("dtype")?;
            Err(usage(py, &format!("input '{name}' is a numpy array of {dtype}, which models do not have")))
        }
    }
}

fn strings_of(name: &str, array: &Bound<'_, PyAny>) -> PyResult<StringTensor> {
    let py = array.py();
    let shape: Vec<usize> = array.getattr("shape")?.extract()?;
    let mut texts = Vec::new();
    for text in array.call_method0("ravel")?.call_method0("tolist")?.try_iter()? {
        let text = text?;
        let text = match text.call_method1("decode", ("utf-8",)) {
            Ok(decoded) => decoded,
            Err(_) => text,
        };
        let text = text.cast::<PyString>().map_err(|_| {
            let kind = text.get_type().name().map_or("?".to_string(), |name| name.to_string());
            usage(py, &format!("input '{name}' holds a {kind} where strings are expected"))
        })?;
        texts.push(text.to_str()?.to_string());
    }
    let count = texts.len();
    StringTensor::new(shape, texts)
        .ok_or_else(|| usage(py, &format!("input '{name}' has {count} strings, which do not fill its shape")))
}

/// A value of a model as a Python object.
pub fn object_of<'py>(py: Python<'py>, value: &Value) -> PyResult<Bound<'py, PyAny>> {
    match value {
        Value::Tensor(tensor) => array_of_tensor(py, tensor),
        Value::Strings(strings) => {
            let numpy = py.import("numpy")?;
            let array = numpy.call_method1("empty", (strings.elements().len(), "object"))?;
            for (place, text) in strings.elements().iter().enumerate() {
                array.set_item(place, text)?;
            }
            array.call_method1("reshape", (strings.shape().to_vec(),))
        }
        Value::Sequence(elements) => {
            let list = PyList::empty(py);
            for element in elements {
                list.append(object_of(py, element)?)?;
            }
            Ok(list.into_any())
        }
        Value::Nothing => Ok(py.None().into_bound(py)),
    }
}
