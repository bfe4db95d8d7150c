//! A web site with a limit that it does not state: what is too much is answered by a bare 429.

use axum::Router;
use axum::http::StatusCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;
use tollgate::{Inherit, Quota, TokenBucket};

pub(crate) struct Site {
    pub(crate) name: &'static str,
    pub(crate) address: String,
    /// `None`: the site is down, and answers 503.
    limit: Option<TokenBucket>,
    pub(crate) requests: AtomicUsize,
}

fn quota(per_second: u64) -> Quota {
    Quota::per_second(per_second).burst(per_second / 10)
}

impl Site {
    pub(crate) async fn start(name: &'static str, per_second: Option<u64>) -> std::io::Result<Arc<Self>> {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        let site = Arc::new(Self {
            name,
            address: listener.local_addr()?.to_string(),
            limit: per_second.map(|per_second| TokenBucket::new(quota(per_second))),
            requests: AtomicUsize::new(0),
        });
        let here = Arc::clone(&site);
        let router = Router::new().fallback(async move || here.answer().await);
        tokio::spawn(async move { axum::serve(listener, router).await });
        Ok(site)
    }

    pub(crate) fn allow(&self, per_second: u64) {
        if let Some(limit) = &self.limit {
            limit.set_quota(quota(per_second), Inherit::AsIs);
        }
    }

    async fn answer(&self) -> StatusCode {
        self.requests.fetch_add(1, Relaxed);
        tokio::time::sleep(Duration::from_millis(10)).await;
        match self.limit.as_ref().map(|limit| limit.try_acquire(1)) {
            None => StatusCode::SERVICE_UNAVAILABLE,
            Some(Ok(())) => StatusCode::OK,
            Some(Err(_)) => StatusCode::TOO_MANY_REQUESTS,
        }
    }
}
