//! A response body that holds the permit of its request.

use super::classify::{Classify, Verdict};
use crate::core::limiter::Limiter;
use crate::core::permit::Permit;
use http::header::CONTENT_LENGTH;
use http::{HeaderMap, Response};
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use std::fmt;
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll};

pin_project! {
    /// A body that holds a permit until it has been handed over in full, breaks off, or is dropped: a stream is in flight as
    /// long as it lasts. The permit is finished with the outcome that the classifier saw.
    pub struct LimitBody<B: Body, L: Limiter, C: Classify<E>, E> {
        #[pin]
        body: B,
        held: Option<Held<L, C>>,
        error: PhantomData<fn(E)>,
    }

    impl<B: Body, L: Limiter, C: Classify<E>, E> PinnedDrop for LimitBody<B, L, C, E> {
        fn drop(this: Pin<&mut Self>) {
            // Whoever knows the length, or is told the end, need not look for it once more.
            let ended = this.body.is_end_stream();
            if let Some(held) = this.project().held.take() {
                held.dropped(ended);
            }
        }
    }
}

/// What a body holds while it lasts.
pub(super) struct Held<L: Limiter, C> {
    permit: Permit<L>,
    classify: C,
    verdict: Verdict,
    /// How many bytes are still to come, where that was declared.
    left: Option<u64>,
}

impl<L: Limiter, C> Held<L, C> {
    /// What the body of `response` holds. None comes after a question for the head.
    #[inline(always)]
    pub(super) fn of<B: Body, E>(permit: Permit<L>, response: &Response<B>, is_head: bool, classify: &C) -> Self
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
            verdict: classify.response(response.status(), response.headers()),
            classify: classify.clone(),
            left: declared.or_else(|| response.body().size_hint().exact()),
        }
    }

    /// The body has come to its end.
    fn end<E>(self, trailers: Option<&HeaderMap>)
    where
        C: Classify<E>,
    {
        let outcome = match self.verdict {
            Verdict::Is(outcome) => outcome,
            Verdict::InTrailers => self.classify.trailers(trailers),
        };
        self.permit.finish(outcome);
    }

    /// Nobody wants the body any more, `ended` or not. All bytes that were declared are as good as the end where the head
    /// has said all; trailers would still have come.
    fn dropped<E>(self, ended: bool)
    where
        C: Classify<E>,
    {
        let all_sent = self.left == Some(0) && matches!(self.verdict, Verdict::Is(_));
        if ended || all_sent {
            return self.end(None);
        }
        let outcome = self.classify.dropped(self.verdict);
        self.permit.finish(outcome);
    }
}

impl<B: Body, L: Limiter, C: Classify<E>, E> LimitBody<B, L, C, E> {
    /// A body that holds nothing.
    pub(super) fn free(body: B) -> Self {
        Self {
            body,
            held: None,
            error: PhantomData,
        }
    }

    /// A body that holds what it is given.
    #[inline]
    pub(super) fn holding(body: B, held: Option<Held<L, C>>) -> Self {
        Self {
            held,
            body,
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
        let this = self.project();
        let frame = std::task::ready!(this.body.poll_frame(cx));
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
                    let outcome = held.classify.broken(held.verdict);
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
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// What `Content-Length` says: a server that has sent as much need not ask the body for more.
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
