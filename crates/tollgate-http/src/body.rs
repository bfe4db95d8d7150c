//! A response body that holds the permit of its request.

use super::charge::Charged;
use super::classify::{Classify, ResponseOutcome};
use http::header::CONTENT_LENGTH;
use http::{HeaderMap, Response};
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use std::fmt;
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll};
use tollgate::Limiter;

pin_project! {
    /// A body that holds a permit until it has been sent in full, breaks off, or is dropped: a stream is in flight as long as
    /// it lasts. The permit finishes with the outcome that the classifier saw.
    ///
    /// ```
    /// # use http::{Request, Response};
    /// # use http_body_util::{BodyExt, Full};
    /// # use std::convert::Infallible;
    /// # use std::sync::Arc;
    /// # use tollgate::Semaphore;
    /// # use tollgate_http::LimitLayer;
    /// # use tower::{Layer, ServiceExt, service_fn};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let slots = Arc::new(Semaphore::new(1));
    /// let service = LimitLayer::new(Arc::clone(&slots)).layer(service_fn(async |_: Request<()>| {
    ///     Ok::<_, Infallible>(Response::new(Full::<&[u8]>::new(b"hello")))
    /// }));
    /// let body = service.oneshot(Request::new(())).await?.into_body();
    /// assert!(body.is_holding() && slots.in_use() == 1);
    /// assert_eq!(body.collect().await?.to_bytes(), "hello");
    /// assert_eq!(slots.in_use(), 0);
    /// # Ok(())
    /// # }
    /// ```
    pub struct LimitBody<B: Body, L: Limiter, C: Classify<E>, E> {
        // Until its end. It is dropped before the permit ends, so that its drop may correct the charge.
        #[pin]
        body: Option<B>,
        held: Option<Held<L, C>>,
        error: PhantomData<fn(E)>,
    }

    impl<B: Body, L: Limiter, C: Classify<E>, E> PinnedDrop for LimitBody<B, L, C, E> {
        fn drop(this: Pin<&mut Self>) {
            // A reader that knows the length, or has seen the end, need not poll once more.
            let ended = this.is_end_stream();
            let mut this = this.project();
            this.body.set(None);
            if let Some(held) = this.held.take() {
                held.dropped(ended);
            }
        }
    }
}

/// The permit of a body, and the state of its classification.
pub(super) struct Held<L: Limiter, C> {
    permit: Charged<L>,
    classify: C,
    outcome: ResponseOutcome,
    /// The bytes still to come, if the length was declared.
    left: Option<u64>,
}

impl<L: Limiter, C> Held<L, C> {
    /// The state of the body of `response`. A response to a HEAD request has no body.
    #[inline(always)]
    pub(super) fn of<B: Body, E>(permit: Charged<L>, response: &Response<B>, is_head: bool, classify: &C) -> Self
    where
        C: Classify<E>,
    {
        let declared = match is_head {
            true => Some(0),
            false if response.headers().is_empty() => None,
            false => declared_length(response.headers()),
        };
        Self {
            permit,
            outcome: classify.response(response.status(), response.headers()),
            classify: classify.clone(),
            left: declared.or_else(|| response.body().size_hint().exact()),
        }
    }

    /// The body has come to its end.
    fn end<E>(self, trailers: Option<&HeaderMap>)
    where
        C: Classify<E>,
    {
        let outcome = match self.outcome {
            ResponseOutcome::Known(outcome) => outcome,
            ResponseOutcome::InTrailers => self.classify.trailers(trailers),
        };
        self.permit.finish(outcome);
    }

    /// The body was dropped. If all declared bytes were sent and no trailers were due, that is as good as `ended`.
    fn dropped<E>(self, ended: bool)
    where
        C: Classify<E>,
    {
        let all_sent = self.left == Some(0) && matches!(self.outcome, ResponseOutcome::Known(_));
        if ended || all_sent {
            return self.end(None);
        }
        let outcome = self.classify.dropped(self.outcome);
        self.permit.finish(outcome);
    }
}

impl<B: Body, L: Limiter, C: Classify<E>, E> LimitBody<B, L, C, E> {
    /// A body without a permit.
    pub(super) fn free(body: B) -> Self {
        Self {
            body: Some(body),
            held: None,
            error: PhantomData,
        }
    }

    /// A body that holds `held`.
    #[inline]
    pub(super) fn holding(body: B, held: Option<Held<L, C>>) -> Self {
        Self {
            held,
            body: Some(body),
            error: PhantomData,
        }
    }

    /// True while it holds a permit.
    pub fn is_holding(&self) -> bool {
        self.held.is_some()
    }
}

impl<B: Body, L: Limiter, C: Classify<E>, E> Body for LimitBody<B, L, C, E> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let mut this = self.project();
        let Some(body) = this.body.as_mut().as_pin_mut() else {
            return Poll::Ready(None);
        };
        let polled = body.poll_frame(cx);
        if let Some(held) = this.held.as_mut() {
            held.permit.settle();
        }
        let frame = std::task::ready!(polled);
        let goes_on = matches!(&frame, Some(Ok(frame)) if !frame.is_trailers());
        if !goes_on {
            this.body.set(None);
        }
        match &frame {
            Some(Ok(frame)) => {
                if let Some(trailers) = frame.trailers_ref() {
                    if let Some(held) = this.held.take() {
                        held.end(Some(trailers));
                    }
                } else if let (Some(data), Some(held)) = (frame.data_ref(), this.held) {
                    let length = bytes_of(data);
                    held.left = held.left.map(|left| left.saturating_sub(length));
                }
            }
            Some(Err(_)) => {
                if let Some(held) = this.held.take() {
                    let outcome = held.classify.broken(held.outcome);
                    held.permit.finish(outcome);
                }
            }
            None => {
                if let Some(held) = this.held.take() {
                    held.end(None);
                }
            }
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        let ended = || SizeHint::with_exact(0);
        self.body.as_ref().map_or_else(ended, Body::size_hint)
    }
}

/// The declared `Content-Length`: a server that has sent this much need not poll the body again.
fn declared_length(headers: &HeaderMap) -> Option<u64> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

fn bytes_of(data: &impl bytes::Buf) -> u64 {
    data.remaining() as u64
}

impl<B: Body + fmt::Debug, L: Limiter, C: Classify<E>, E> fmt::Debug for LimitBody<B, L, C, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LimitBody")
            .field("body", &self.body)
            .field("is_holding", &self.is_holding())
            .finish()
    }
}
