//! A provider of models: it answers with words, one a token, and tells at the end what it bills.

use super::chat::{Chat, Choice, Chunk, Message, Usage};
use axum::body::{Body, Bytes};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use futures::stream;
use std::convert::Infallible;
use std::time::Duration;

/// It pauses for `pause` between two words. An answer is as long as the last word of the prompt says, `300` for instance, and 100 tokens without
/// one; at most `max_tokens`.
pub(crate) fn upstream(pause: Duration) -> Router {
    Router::new().route("/v1/chat/completions", post(move |Json(chat)| complete(chat, pause)))
}

async fn complete(chat: Chat, pause: Duration) -> Response {
    let last = chat
        .messages
        .last()
        .and_then(|message| message.content.split(' ').next_back());
    let length = last
        .and_then(|word| word.parse().ok())
        .unwrap_or(100)
        .min(chat.max_tokens);
    let usage = Usage {
        prompt_tokens: chat.prompt(),
        completion_tokens: length,
    };
    if !chat.stream {
        tokio::time::sleep(pause * u32::try_from(length).unwrap_or(u32::MAX)).await;
        return Json(chunk("word ".repeat(length as usize), Some(usage))).into_response();
    }
    let words = stream::unfold(0, move |word| async move {
        if word > length + 1 {
            return None;
        }
        if word > 0 && word < length {
            tokio::time::sleep(pause).await;
        }
        let event = match word {
            _ if word < length => serde_json::to_string(&chunk("word".to_owned(), None)),
            _ if word == length => serde_json::to_string(&chunk(String::new(), Some(usage))),
            _ => Ok("[DONE]".to_owned()),
        };
        let event = format!("data: {}\n\n", event.expect("plain data"));
        Some((Ok::<_, Infallible>(Bytes::from(event)), word + 1))
    });
    ([("content-type", "text/event-stream")], Body::from_stream(words)).into_response()
}

fn chunk(content: String, usage: Option<Usage>) -> Chunk {
    let (role, choices) = ("assistant".to_owned(), Vec::new());
    let mut chunk = Chunk { choices, usage };
    if !content.is_empty() {
        let message = Message { role, content };
        chunk.choices.push(Choice { message });
    }
    chunk
}
