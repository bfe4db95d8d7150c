//! The HTTP client of the server, with our credentials.

use crate::http::{Answer, Http};
use bytes::Bytes;
use http::{Method, StatusCode};
use hyper::body::Incoming;
use serde::Deserialize;
use serde_json::{Value, json};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Mutex;
use tollgate::remote::RemoteError;
use tollgate::remote::StoreError;

/// A client of the server. Clones share their token.
#[derive(Clone)]
pub(super) struct AuthHttp {
    http: Http,
    login: Option<Arc<Login>>,
}

/// A name and a password, and the client with the token for them.
struct Login {
    said: Bytes,
    /// Held during a login: later callers wait for it. The number is that of the token.
    known: Mutex<(u64, Option<Http>)>,
}

impl AuthHttp {
    /// A client that sends the headers of `http` with each call, or logs in first with this name and password.
    pub(super) fn new(http: Http, login: Option<(&str, &str)>) -> Self {
        let login = login.map(|(name, password)| {
            let said = json!({ "name": name, "password": password });
            Arc::new(Login {
                said: said.to_string().into(),
                known: Mutex::default(),
            })
        });
        Self { http, login }
    }

    /// How long an answer may take.
    pub(super) fn timeout(&self) -> Duration {
        self.http.timeout()
    }

    /// Sends a request, and reads the whole answer.
    pub(super) async fn ask(&self, path: &str, body: &Value) -> Result<Answer, StoreError> {
        let body = Bytes::from(body.to_string());
        let after = self.timeout();
        let (number, http) = self.known(0).await?;
        let answer = http.call(Method::POST, path, body.clone(), after).await?;
        // A token with more than a name ends when rights are changed.
        let is_old =
            || answer.status == StatusCode::BAD_REQUEST && answer.text().contains("revision of auth store is old");
        if self.login.is_none() || answer.status != StatusCode::UNAUTHORIZED && !is_old() {
            return Ok(answer);
        }
        // The server does not know the token any more, and has done nothing.
        let (_, http) = self.known(number).await?;
        http.call(Method::POST, path, body, after).await
    }

    /// Sends a request, and returns when the answer begins; without a time-out.
    pub(super) async fn open(&self, path: &str, body: &Value) -> Result<(StatusCode, Incoming), StoreError> {
        let body = Bytes::from(body.to_string());
        let after = self.timeout();
        let (number, http) = self.known(0).await?;
        let opened = async |http: Http| {
            let opening = http.open(Method::POST, path, body.clone());
            let opened = tokio::time::timeout(after, opening).await;
            let (status, _, body) = opened.unwrap_or(Err(StoreError::TimedOut { after }))?;
            Ok((status, body))
        };
        let (status, heard) = opened(http).await?;
        if self.login.is_none() || status != StatusCode::UNAUTHORIZED {
            return Ok((status, heard));
        }
        let (_, http) = self.known(number).await?;
        opened(http).await
    }

    /// The client with a token later than that of this number.
    async fn known(&self, forgotten: u64) -> Result<(u64, Http), StoreError> {
        let Some(login) = &self.login else {
            return Ok((0, self.http.clone()));
        };
        let mut known = login.known.lock().await;
        if let (number, Some(http)) = &*known
            && *number > forgotten
        {
            return Ok((*number, http.clone()));
        }
        let path = "/v3/auth/authenticate";
        let answer = self.http.call(Method::POST, path, login.said.clone(), self.timeout());
        let told: Told = answer.await?.json()?;
        let given = |_: RemoteError| StoreError::Answer {
            given: "a token with control characters".into(),
        };
        let http = self.http.saying("authorization", &told.token).map_err(given)?;
        *known = (known.0 + 1, Some(http.clone()));
        Ok((known.0, http))
    }
}

#[derive(Deserialize)]
struct Told {
    token: String,
}

/// Without secrets.
impl fmt::Debug for AuthHttp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.http.fmt(f)
    }
}
