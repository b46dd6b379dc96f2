//! Operators that are known and not imported, with the reason that a person is told.

/// One refused operator.
pub struct Refused {
    /// Operator domain; "" is ai.onnx.
    pub domain: &'static str,
    /// Operator name; one that ends with `*` stands for all that begin so, and `*` for the whole domain.
    pub name: &'static str,
    /// Why, and what would help.
    pub reason: &'static str,
}

impl Refused {
    fn is(&self, domain: &str, name: &str) -> bool {
        let is_named = match self.name.strip_suffix('*') {
            Some(stem) => name.starts_with(stem),
            None => name == self.name,
        };
        self.domain == domain && is_named
    }
}

const SEARCH: &str = "a search loop belongs to the caller: export the model of one step";
const BINARY: &str = "its weights are an opaque binary of another system: export the model without it";
const TILES: &str = "its operands lie in tiles of one vendor's cards: quantise without that order";
const LAYOUT: &str = "saved after another system's layout changes: export again without them";
const TRAINING: &str = "training operators are not covered";
const MAPS: &str = "maps are not covered as values: give the model tensors";

/// Every refused operator.
pub const REFUSED: &[Refused] = &[
    refused("", "ImageDecoder", "files of images are not decoded: give the model pixels"),
    refused("ai.onnx.ml", "CastMap", MAPS),
    refused("ai.onnx.ml", "DictVectorizer", MAPS),
    refused("ai.onnx.preview.training", "*", TRAINING),
    refused("com.microsoft", "BeamSearch", SEARCH),
    refused("com.microsoft", "DequantizeWithOrder", TILES),
    refused("com.microsoft", "EPContext", BINARY),
    refused("com.microsoft", "GreedySearch", SEARCH),
    refused("com.microsoft", "MatMulFpQ4", "its weights are packed for kernels of one library: export MatMulNBits"),
    refused("com.microsoft", "QOrdered*", TILES),
    refused("com.microsoft", "QuantizeWithOrder", TILES),
    refused("com.microsoft", "Sampling", SEARCH),
    refused("com.microsoft", "Snpe", BINARY),
    refused("com.microsoft", "Tokenizer", "texts are cut into tokens before the model: give it numbers"),
    refused("com.microsoft", "WhisperBeamSearch", SEARCH),
    refused("com.microsoft.nchwc", "*", LAYOUT),
    refused("com.ms.internal.nhwc", "*", LAYOUT),
];

const fn refused(domain: &'static str, name: &'static str, reason: &'static str) -> Refused {
    Refused { domain, name, reason }
}

/// Why an operator is refused, if it is.
pub(super) fn reason(domain: &str, name: &str) -> Option<&'static str> {
    REFUSED.iter().find(|refused| refused.is(domain, name)).map(|refused| refused.reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operators_are_refused_by_name_by_stem_or_by_domain() {
        assert_eq!(reason("com.microsoft", "QOrderedMatMul"), Some(TILES));
        assert_eq!(reason("com.microsoft.nchwc", "Conv"), Some(LAYOUT));
        assert_eq!(reason("ai.onnx.preview.training", "Adam"), Some(TRAINING));
        assert_eq!(reason("", "EPContext"), None);
    }

    #[test]
    fn nothing_is_both_refused_and_imported() {
        for refused in REFUSED {
            assert!(!crate::operators::rows().any(|row| refused.is(row.domain, row.name)), "{}", refused.name);
        }
    }
}
