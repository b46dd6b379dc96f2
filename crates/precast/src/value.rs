//! What a model may take and give beside tensors of numbers: strings, sequences and optionals. A Graph knows tensors
//! alone, so a value is taken apart into tensors before a run and put together again after it.

use precast_onnx::StringTensor;
use precast_onnx::import::{Structure, element_name, tabulate};
use precast_tensor::Tensor;

use crate::error::Error;

/// An input or output of any kind.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// A tensor of numbers.
    Tensor(Tensor),
    /// A tensor of strings.
    Strings(StringTensor),
    /// A list of values.
    Sequence(Vec<Value>),
    /// An optional without an element.
    Nothing,
}

impl From<Tensor> for Value {
    fn from(tensor: Tensor) -> Value {
        Value::Tensor(tensor)
    }
}

impl Value {
    /// Adds the value's tensors to `tensors` under names of their own, and says how it lies in them.
    pub(crate) fn take_apart(&self, name: &str, tensors: &mut Vec<(String, Tensor)>) -> Result<Structure, Error> {
        Ok(match self {
            Value::Tensor(tensor) => {
                tensors.push((name.to_string(), tensor.clone()));
                Structure::Tensor
            }
            Value::Strings(strings) => {
                let (table, places) = tabulate(strings.elements());
                tensors.push((name.to_string(), Tensor::from_vec(strings.shape(), places)?));
                Structure::Strings(table)
            }
            Value::Sequence(elements) => {
                let elements = elements.iter().enumerate();
                let taken = elements.map(|(place, element)| element.take_apart(&element_name(name, place), tensors));
                Structure::Sequence(taken.collect::<Result<_, Error>>()?)
            }
            Value::Nothing => Structure::Nothing,
        })
    }

    /// The value whose tensors come next.
    pub(crate) fn put_together(
        structure: &Structure,
        tensors: &mut impl Iterator<Item = Tensor>,
    ) -> Result<Value, Error> {
        let mut next = || tensors.next().ok_or_else(|| Error::Request("a model gave too few outputs".to_string()));
        Ok(match structure {
            Structure::Tensor => Value::Tensor(next()?),
            Structure::Strings(table) => Value::Strings(texts_at(table, &next()?)?),
            Structure::Sequence(elements) => {
                let elements = elements.iter().map(|element| Value::put_together(element, tensors));
                Value::Sequence(elements.collect::<Result<_, Error>>()?)
            }
            Structure::Nothing => Value::Nothing,
        })
    }
}

/// The texts of a table at places.
fn texts_at(table: &[String], places: &Tensor) -> Result<StringTensor, Error> {
    let text = |place: i64| usize::try_from(place).ok().and_then(|place| table.get(place)).cloned();
    let texts: Option<Vec<String>> = places.to_i64_vec()?.into_iter().map(text).collect();
    texts
        .and_then(|texts| StringTensor::new(places.shape().to_vec(), texts))
        .ok_or_else(|| Error::Request("a model gave a string outside of its table".to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_that_is_taken_apart_can_be_put_together() {
        let strings = StringTensor::new(vec![2], vec!["b".into(), "a".into()]).unwrap();
        let inner = Value::Sequence(vec![Tensor::scalar(1.0f32).into(), Value::Strings(strings)]);
        let value = Value::Sequence(vec![inner, Value::Nothing, Tensor::scalar(2i64).into()]);
        let mut tensors = Vec::new();
        let structure = value.take_apart("x", &mut tensors).unwrap();
        let names: Vec<&str> = tensors.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["x[0][0]", "x[0][1]", "x[2]"]);
        let mut tensors = tensors.into_iter().map(|(_, tensor)| tensor);
        assert_eq!(Value::put_together(&structure, &mut tensors).unwrap(), value);
    }
}
