//! The bundled model: small, available offline, trained to answer questions about documents.

use weft_core::model::{Model, ModelBytes, ModelError};

macro_rules! asset {
    ($include:ident, $name:literal) => {
        $include!(concat!("../../../assets/weft-tiny/", $name))
    };
}

const WEFT_TINY: ModelBytes = ModelBytes {
    name: "weft-tiny (bundled)",
    config: asset!(include_bytes, "config.json"),
    weights: asset!(include_bytes, "model.safetensors"),
    tokenizer: asset!(include_bytes, "tokenizer.json"),
    template: asset!(include_str, "chat_template.jinja"),
    generation: asset!(include_bytes, "generation_config.json"),
    tokenizer_config: asset!(include_bytes, "tokenizer_config.json"),
};

/// Reads the bundled model. It answers only questions about documents in its prompt.
pub fn bundled_model() -> Result<Model, ModelError> {
    Model::from_bytes(WEFT_TINY)
}
