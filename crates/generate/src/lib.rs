//! Text generation: from a model folder to a stream of tokens. The configuration of a folder, its tokenizer and chat
//! template, the rules by which tokens are chosen, and the planner and caches that drive a decoder's Programs. Knows no
//! target, no ONNX and no HTTP.
#![forbid(unsafe_code)]

pub mod adapter;
pub mod chat_template;
pub mod completion;
pub mod config;
pub mod decoder_state;
pub mod engine;
pub mod generator;
pub mod golden;
pub mod kv_cache;
pub mod ladder;
mod line_memory;
pub mod plan;
mod python_methods;
pub mod resident;
pub mod roles;
mod row_cache;
pub mod row_search;
pub mod search;
mod spare_memory;
pub mod step_buffers;
pub mod step_trace;
pub mod suggestion;
pub mod text_model;
pub mod text_stream;
pub mod tokenizer;

pub use adapter::{Adapter, AdapterError, Adapters};
pub use completion::{Completion, Completions, generate};
pub use config::{Folder, GenerationConfig};
pub use decoder_state::{StepObserver, StepStats};
pub use engine::{Engine, EngineOptions};
pub use generator::{GenerateError, Generator, StepToken};
pub use search::{FinishReason, GeneratorParams, LogprobsMode, RowSeed};
pub use text_model::TextModel;
pub use tokenizer::Tokenizer;
