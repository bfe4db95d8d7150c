//! The messages of an OpenAI-compatible chat, as far as the gateway and its upstream need them.

use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Chat {
    pub(crate) model: String,
    pub(crate) messages: Vec<Message>,
    pub(crate) max_tokens: u64,
    #[serde(default)]
    pub(crate) stream: bool,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Message {
    pub(crate) role: String,
    pub(crate) content: String,
}

/// The true cost, which the upstream tells at the end.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) prompt_tokens: u64,
    pub(crate) completion_tokens: u64,
}

/// One event of a stream, or the whole answer.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct Chunk {
    #[serde(default)]
    pub(crate) choices: Vec<Choice>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) usage: Option<Usage>,
}

#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct Choice {
    /// `delta` in a stream.
    #[serde(alias = "delta")]
    pub(crate) message: Message,
}

impl Chat {
    pub(crate) fn prompt(&self) -> u64 {
        self.messages.iter().map(|message| tokens(&message.content)).sum()
    }
}

/// An approximation: four bytes a token, rounded up. English text has about four characters a token; other languages have fewer.
pub(crate) fn tokens(text: &str) -> u64 {
    (text.len() as u64).div_ceil(4)
}
