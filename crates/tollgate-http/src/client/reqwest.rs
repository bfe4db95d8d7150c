//! The layer as a middleware of reqwest.

use super::deadline::{self, Deadline};
use super::dialect::Dialect;
use super::layer::UpstreamLayer;
use crate::classify::Classify;
use crate::gate::CostFn;
use crate::request_parts::RequestParts;
use crate::respond::LimitError;
use async_trait::async_trait;
use http::Extensions;
use reqwest::{Body, Request, Response, ResponseBuilderExt};
use reqwest_middleware::{Error, Middleware, Next, Result};
use std::task::Poll;
use tollgate::Limiter;

/// A client of reqwest behind the limits of its upstream.
///
/// Each call of the middlewares behind this one is one attempt. Add a middleware that retries before it, so that each attempt waits for
/// its own admission. The body of the response holds the permit until it has been read or dropped.
///
/// # Errors
/// A refusal is [`Error::Middleware`] with a [`LimitError::Refused`].
///
/// ```
/// use reqwest_middleware::ClientBuilder;
/// use std::sync::Arc;
/// use tollgate_resilience::upstream::Upstream;
/// use tollgate::{LimiterExt, Policy, Quota, Semaphore, TokenBucket};
/// use tollgate_http::client::{GitHub, UpstreamLayer};
///
/// let rate = Quota::per_hour(5_000);
/// let upstream = Arc::new(Upstream::builder().rate(rate).build()?);
/// let limits = TokenBucket::new(rate).and(Semaphore::new(10));
/// let client = ClientBuilder::new(reqwest::Client::new())
///     .with(UpstreamLayer::new(Arc::clone(&upstream), limits).dialect(GitHub))
///     .build();
/// // `client.get(url).send().await` waits for its admission, and a 429 pauses every clone of `client`.
/// assert_eq!(upstream.paused_for(), None);
/// # let _ = client;
/// # Ok::<(), tollgate_resilience::upstream::UpstreamError>(())
/// ```
#[async_trait]
impl<L, D, P, C> Middleware for UpstreamLayer<L, D, P, C>
where
    L: Limiter + 'static,
    D: Dialect,
    P: CostFn,
    C: Classify<Error> + Send + Sync + 'static,
{
    async fn handle(&self, mut request: Request, extensions: &mut Extensions, next: Next<'_>) -> Result<Response> {
        let (ask, is_head) = {
            let mut head = http::Request::builder()
                .method(request.method())
                .uri(request.url().as_str());
            if let Some(headers) = head.headers_mut() {
                headers.clone_from(request.headers());
            }
            let mut head = head.body(()).map_err(Error::middleware)?;
            head.extensions_mut().clone_from(extensions);
            (
                self.ask(&RequestParts::of(&head)),
                request.method() == http::Method::HEAD,
            )
        };
        let deadline = Deadline::of(request.headers(), self.clock());
        let admitted = self
            .admit(ask, &deadline, |_| Poll::Ready(Ok(())))
            .await
            .map_err(flat)?;
        deadline::shorten(&deadline, self.clock(), request.headers_mut());
        let response = next.run(request, extensions).await;
        let url = response.as_ref().ok().map(|response| response.url().clone());
        let response = self
            .respond(admitted, response.map(http::Response::<Body>::from), is_head)
            .map_err(flat)?;
        let (head, body) = response.into_parts();
        let mut response = http::Response::builder().status(head.status).version(head.version);
        if let Some(url) = url {
            response = response.url(url);
        }
        let mut response = response.body(Body::wrap(body)).map_err(Error::middleware)?;
        *response.headers_mut() = head.headers;
        response.extensions_mut().extend(head.extensions);
        Ok(response.into())
    }
}

/// A refusal as an error of the middleware; that of the client as it is.
fn flat(error: LimitError<Error>) -> Error {
    match error {
        LimitError::Inner(error) => error,
        LimitError::Refused(refusal) => Error::middleware(LimitError::<std::convert::Infallible>::Refused(refusal)),
    }
}
