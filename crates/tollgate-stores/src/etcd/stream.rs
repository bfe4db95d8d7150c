//! Streams of answers, a line of JSON for each.

use super::auth::AuthHttp;
use super::wire::Streamed;
use bytes::BytesMut;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tollgate::remote::StoreError;

pub(super) struct JsonStream {
    body: Incoming,
    /// Received, and not read yet.
    buffer: BytesMut,
    /// The beginning of it that is known to have no end of a line.
    searched: usize,
}

/// The longest line that is read.
const LONGEST: usize = 64 << 20;

impl JsonStream {
    pub(super) async fn of(http: &AuthHttp, path: &str, body: &Value) -> Result<Self, StoreError> {
        let (status, body) = http.open(path, body).await?;
        if !status.is_success() {
            let why = format!("{path}: {status}").into();
            return Err(StoreError::Refused { why });
        }
        let buffer = BytesMut::new();
        let searched = 0;
        Ok(Self { body, buffer, searched })
    }

    /// The next answer; `None` at the end.
    pub(super) async fn next<T: DeserializeOwned>(&mut self) -> Result<Option<T>, StoreError> {
        loop {
            let end = self.buffer[self.searched..].iter().position(|&byte| byte == b'\n');
            if let Some(end) = end.map(|end| self.searched + end) {
                self.searched = 0;
                let line = self.buffer.split_to(end + 1);
                if line.trim_ascii().is_empty() {
                    continue;
                }
                let answer: Streamed<T> = serde_json::from_slice(&line).map_err(|error| StoreError::Answer {
                    given: error.to_string().into(),
                })?;
                return Ok(answer.result);
            }
            self.searched = self.buffer.len();
            let frame = match self.body.frame().await {
                None => return Ok(None),
                Some(Ok(frame)) => frame,
                Some(Err(error)) => {
                    let why = error.to_string().into();
                    return Err(StoreError::Unreachable { why });
                }
            };
            if let Some(data) = frame.data_ref() {
                self.buffer.extend_from_slice(data);
            }
            if self.buffer.len() > LONGEST {
                let given = "a line without an end".into();
                return Err(StoreError::Answer { given });
            }
        }
    }
}
