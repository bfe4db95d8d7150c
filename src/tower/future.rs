//! The future of a limited request.

use super::body::LimitBody;
use super::classify::Classify;
use super::gate::{Refused, Waited};
use super::respond::Respond;
use crate::limiter::Limiter;
use crate::permit::Permit;
use http::header::CONTENT_LENGTH;
use http::{Request, Response};
use http_body::Body;
use pin_project_lite::pin_project;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tower_service::Service;

/// A response whose body holds a permit.
type Limited<B, L, C, E> = Response<LimitBody<B, L, C, E>>;

pin_project! {
    /// Waits for admission, if need be, and then for the service.
    ///
    /// # Cancel safety
    /// Dropping it leaves the line, or drops the work of the service and gives the permit back. Nothing is lost.
    #[must_use = "futures do nothing unless polled"]
    pub struct LimitFuture<S: Service<Request<B>>, B, L: Limiter, C, R> {
        #[pin]
        state: State<S, S::Future, Request<B>, L>,
        classify: C,
        respond: R,
        // No body will be sent, whatever the response declares.
        is_head: bool,
    }
}

pin_project! {
    #[project = StateProject]
    enum State<S, F, Q, L: Limiter> {
        Running { #[pin] future: F, permit: Option<Permit<L>> },
        Waiting { wait: Pin<Box<dyn Future<Output = Waited<L>> + Send>>, service: S, request: Option<Q> },
        Refused { refused: Option<Refused<L>> },
    }
}

impl<S: Service<Request<B>>, B, L: Limiter, C, R> LimitFuture<S, B, L, C, R> {
    fn new(state: State<S, S::Future, Request<B>, L>, classify: C, respond: R, is_head: bool) -> Self {
        Self {
            state,
            classify,
            respond,
            is_head,
        }
    }

    pub(super) fn running(
        future: S::Future,
        permit: Option<Permit<L>>,
        classify: C,
        respond: R,
        is_head: bool,
    ) -> Self {
        Self::new(State::Running { future, permit }, classify, respond, is_head)
    }

    pub(super) fn waiting(
        wait: Pin<Box<dyn Future<Output = Waited<L>> + Send>>,
        service: S,
        request: Request<B>,
        classify: C,
        respond: R,
    ) -> Self {
        let is_head = request.method() == http::Method::HEAD;
        let state = State::Waiting {
            wait,
            service,
            request: Some(request),
        };
        Self::new(state, classify, respond, is_head)
    }

    pub(super) fn refused(refused: Refused<L>, classify: C, respond: R) -> Self {
        let state = State::Refused { refused: Some(refused) };
        Self::new(state, classify, respond, false)
    }
}

impl<S, B, RB, L, C, R> Future for LimitFuture<S, B, L, C, R>
where
    S: Service<Request<B>, Response = Response<RB>>,
    RB: Body,
    L: Limiter,
    C: Classify<S::Error>,
    R: Respond<RB, S::Error>,
{
    type Output = Result<Limited<RB, L, C, S::Error>, R::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            let next = match this.state.as_mut().project() {
                StateProject::Running { future, permit } => {
                    let result = ready!(future.poll(cx));
                    return Poll::Ready(finish(
                        result,
                        permit.take(),
                        this.classify,
                        this.respond,
                        *this.is_head,
                    ));
                }
                StateProject::Waiting { wait, service, request } => match ready!(wait.as_mut().poll(cx)) {
                    Ok(permit) => {
                        let request = request.take().expect("the request is there until the wait has ended");
                        State::Running {
                            future: service.call(request),
                            permit: Some(permit),
                        }
                    }
                    Err(refused) => State::Refused { refused: Some(refused) },
                },
                StateProject::Refused { refused } => {
                    let refused = refused.take().expect("polled after it was ready");
                    let response = this.respond.refused(refused)?;
                    return Poll::Ready(Ok(response.map(LimitBody::free)));
                }
            };
            this.state.set(next);
        }
    }
}

/// The response of the service, with the permit in its body.
fn finish<RB, L, C, R, E>(
    result: Result<Response<RB>, E>,
    permit: Option<Permit<L>>,
    classify: &C,
    respond: &R,
    is_head: bool,
) -> Result<Limited<RB, L, C, E>, R::Error>
where
    RB: Body,
    L: Limiter,
    C: Classify<E>,
    R: Respond<RB, E>,
{
    let (mut response, permit) = match (result, permit) {
        (Ok(response), Some(permit)) => (response, permit),
        (Ok(response), None) => return Ok(response.map(LimitBody::free)),
        (Err(error), permit) => {
            if let Some(permit) = permit {
                permit.finish(classify.error(&error));
            }
            return Err(respond.failed(error));
        }
    };
    respond.admitted(&mut response, permit.limiter());
    let verdict = classify.response(response.status(), response.headers());
    let declared = if is_head { Some(0) } else { declared_length(&response) };
    Ok(response.map(|body| LimitBody::holding(body, permit, verdict, classify.clone(), declared)))
}

/// What `Content-Length` says: a server that has sent as much need not ask the body for more.
fn declared_length<B>(response: &Response<B>) -> Option<u64> {
    response.headers().get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}
