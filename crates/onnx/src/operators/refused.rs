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
const TRAINED: &str = "dropout and its masks are for training: export the model for inference";
const RARE: &str = "it is rare and not covered: export the operators of ai.onnx that it is made of";

/// Every refused operator.
pub const REFUSED: &[Refused] = &[
    refused("", "ImageDecoder", "files of images are not decoded: give the model pixels"),
    refused("ai.onnx.ml", "CastMap", MAPS),
    refused("ai.onnx.ml", "DictVectorizer", MAPS),
    refused("ai.onnx.preview.training", "*", TRAINING),
    refused("com.microsoft", "AttnLSTM", RARE),
    refused("com.microsoft", "BeamSearch", SEARCH),
    refused("com.microsoft", "BiasDropout", TRAINED),
    refused("com.microsoft", "BitmaskBiasDropout", TRAINED),
    refused("com.microsoft", "BitmaskDropout", TRAINED),
    refused("com.microsoft", "BranchwiseRMSNorm", RARE),
    refused("com.microsoft", "DequantizeWithOrder", TILES),
    refused("com.microsoft", "DynamicSparseAttention", RARE),
    refused("com.microsoft", "DynamicTimeWarping", RARE),
    refused("com.microsoft", "EPContext", BINARY),
    refused("com.microsoft", "EngramGate", RARE),
    refused("com.microsoft", "GatedAdd", RARE),
    refused("com.microsoft", "GreedySearch", SEARCH),
    refused("com.microsoft", "HyperConnection*", RARE),
    refused("com.microsoft", "IsAllFinite", RARE),
    refused("com.microsoft", "LinearAttentionGate", RARE),
    refused("com.microsoft", "MatMulFpQ4", "its weights are packed for kernels of one library: export MatMulNBits"),
    refused(
        "com.microsoft",
        "MaxpoolWithMask",
        "it is for one runtime's internal use and says nowhere what it computes",
    ),
    refused("com.microsoft", "MurmurHash3", RARE),
    refused("com.microsoft", "NGramHashMapping", RARE),
    refused("com.microsoft", "PackedSparseAttentionIndexer", RARE),
    refused("com.microsoft", "QOrdered*", TILES),
    refused("com.microsoft", "QuantizeWithOrder", TILES),
    refused("com.microsoft", "Sampling", SEARCH),
    refused("com.microsoft", "ScaledSiLU", RARE),
    refused("com.microsoft", "Snpe", BINARY),
    refused("com.microsoft", "SparseAttentionIndexer", RARE),
    refused("com.microsoft", "SparsePagedAttention", RARE),
    refused("com.microsoft", "Tokenizer", "texts are cut into tokens before the model: give it numbers"),
    refused("com.microsoft", "VarlenCausalConvWithState", RARE),
    refused("com.microsoft", "VarlenNGramHashMapping", RARE),
    refused("com.microsoft", "WhisperBeamSearch", SEARCH),
    refused("com.microsoft", "WordConvEmbedding", RARE),
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
