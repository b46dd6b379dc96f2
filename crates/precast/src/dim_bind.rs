//! `a.0=batch,b.0=batch`: making axes of inputs one dim. `*.0=batch` means axis 0 of every input that has one.

use std::collections::BTreeMap;
use std::str::FromStr;

use precast_tensor::Dim;

use crate::error::Error;
use crate::model::InputInfo;
use crate::suggestion::listed;

/// An axis that becomes a dim of this name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DimBind {
    /// Name of the input; none means every input with that axis.
    pub input: Option<String>,
    /// The axis.
    pub axis: usize,
    /// Name of the dim.
    pub symbol: String,
}

/// Several of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DimBinds(pub Vec<DimBind>);

impl FromStr for DimBinds {
    type Err = String;

    fn from_str(text: &str) -> Result<DimBinds, String> {
        let bind = |part: &str| {
            // Names of inputs may have dots and equals signs in them.
            let (place, symbol) = part.rsplit_once('=')?;
            let (input, axis) = place.rsplit_once('.')?;
            let (input, symbol) = (input.trim(), symbol.trim());
            let is_whole = !input.is_empty() && !symbol.is_empty();
            let axis = axis.trim().parse().ok().filter(|_| is_whole)?;
            let input = (input != "*").then(|| input.to_string());
            Some(DimBind { input, axis, symbol: symbol.to_string() })
        };
        let parse =
            |part: &str| bind(part).ok_or_else(|| format!("'{part}': INPUT.AXIS=DIM is expected, as in *.0=batch"));
        text.split(',').map(parse).collect::<Result<_, String>>().map(DimBinds)
    }
}

impl DimBinds {
    /// The inputs as they are declared after binding.
    pub fn bound(&self, inputs: &[InputInfo]) -> Result<Vec<InputInfo>, Error> {
        let mut shapes = self.shapes(inputs)?;
        let bind = |input: &InputInfo| InputInfo {
            dims: shapes.remove(&input.name).or_else(|| input.dims.clone()),
            ..input.clone()
        };
        Ok(inputs.iter().map(bind).collect())
    }

    /// Whole shapes of the inputs that are bound.
    pub(crate) fn shapes(&self, inputs: &[InputInfo]) -> Result<BTreeMap<String, Vec<Dim>>, Error> {
        let mut shapes: BTreeMap<String, Vec<Dim>> = BTreeMap::new();
        for bind in &self.0 {
            let mut is_used = false;
            for input in inputs.iter().filter(|input| bind.input.as_ref().is_none_or(|name| *name == input.name)) {
                let Some(dims) = &input.dims else {
                    return Err(Error::Request(format!(
                        "input '{}' has no declared rank to bind an axis of",
                        input.name
                    )));
                };
                if let Some(dim) = shapes.entry(input.name.clone()).or_insert_with(|| dims.clone()).get_mut(bind.axis) {
                    *dim = Dim::symbol(bind.symbol.as_str());
                    is_used = true;
                }
            }
            if !is_used {
                let names: Vec<&str> = inputs.iter().map(|input| input.name.as_str()).collect();
                let name = bind.input.as_deref().unwrap_or("*");
                return Err(Error::Request(format!(
                    "no input '{name}' has an axis {}; {}",
                    bind.axis,
                    listed(name, &names)
                )));
            }
        }
        Ok(shapes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use precast_tensor::DType;

    #[test]
    fn binds_read_as_they_are_written() {
        let bind = |input: Option<&str>, axis, symbol: &str| DimBind {
            input: input.map(str::to_string),
            axis,
            symbol: symbol.to_string(),
        };
        assert_eq!("*.0=batch".parse(), Ok(DimBinds(vec![bind(None, 0, "batch")])));
        assert_eq!("a.b.1=n,c=d.0=n".parse(), Ok(DimBinds(vec![bind(Some("a.b"), 1, "n"), bind(Some("c=d"), 0, "n")])));
        for bad in ["", "a=n", "a.x=n", "a.0=", ".0=n"] {
            assert!(bad.parse::<DimBinds>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_star_binds_every_input_that_has_the_axis() {
        let input =
            |name: &str, dims: Vec<Dim>| InputInfo { name: name.to_string(), dtype: DType::F32, dims: Some(dims) };
        let inputs = [input("x", vec![Dim::from(1), Dim::from(2)]), input("scale", vec![])];
        let shapes = "*.0=batch".parse::<DimBinds>().unwrap().shapes(&inputs).unwrap();
        assert_eq!(shapes["x"], [Dim::symbol("batch"), Dim::from(2)]);
        assert!("y.0=batch".parse::<DimBinds>().unwrap().shapes(&inputs).is_err());
    }
}
