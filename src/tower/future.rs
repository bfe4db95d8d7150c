//! The future of a limited request.

use super::body::{Held, LimitBody};
use super::classify::Classify;
use super::gate::Waited;
use super::refused::Refused;
use super::respond::Respond;
use crate::core::limiter::Limiter;
use crate::core::permit::Permit;
use http::{Request, Response};
use http_body::Body;
use pin_project_lite::pin_project;
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};
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
        state: State<S, S::Future, Request<B>, L, S::Error>,
        classify: C,
        respond: R,
        // No body will be sent, whatever the response declares.
        is_head: bool,
    }
}

pin_project! {
    #[project = StateProject]
    enum State<S, F, Q, L: Limiter, E> {
        Waiting { wait: Pin<Box<dyn Future<Output = Waited<L>> + Send>>, call: Option<Call<S, Q>> },
        Starting { call: Option<Call<S, Q>>, permit: Option<Permit<L>> },
        Running { #[pin] future: F, permit: Option<Permit<L>> },
        Refused { refused: Option<Refused<L>> },
        Failed { error: Option<E>, permit: Option<Permit<L>> },
    }
}

/// A request, and a service of its own that is to become ready for it.
pub(super) struct Call<S, Q> {
    pub(super) service: S,
    pub(super) request: Q,
}

const TAKEN: &str = "each state is left once, and a future is not polled after its end";

impl<S: Service<Request<B>>, B, L: Limiter, C, R> LimitFuture<S, B, L, C, R> {
    fn new(state: State<S, S::Future, Request<B>, L, S::Error>, classify: C, respond: R, is_head: bool) -> Self {
        Self {
            state,
            classify,
            respond,
            is_head,
        }
    }

    /// Of a request that has been admitted, or is not limited.
    ///
    /// A service that is ready at once, as nearly all are, is called at once: its request is not moved about. This first look
    /// wakes nobody; another one is taken by whoever polls the future.
    #[inline]
    pub(super) fn starting(call: Call<S, Request<B>>, permit: Option<Permit<L>>, classify: C, respond: R) -> Self {
        let Call { mut service, request } = call;
        let is_head = request.method() == http::Method::HEAD;
        let state = match service.poll_ready(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Ok(())) => State::Running {
                future: service.call(request),
                permit,
            },
            Poll::Ready(Err(error)) => State::Failed {
                error: Some(error),
                permit,
            },
            Poll::Pending => State::Starting {
                call: Some(Call { service, request }),
                permit,
            },
        };
        Self::new(state, classify, respond, is_head)
    }

    pub(super) fn waiting(
        wait: Pin<Box<dyn Future<Output = Waited<L>> + Send>>,
        call: Call<S, Request<B>>,
        classify: C,
        respond: R,
    ) -> Self {
        let is_head = call.request.method() == http::Method::HEAD;
        let call = Some(call);
        Self::new(State::Waiting { wait, call }, classify, respond, is_head)
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

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            // By itself, and first: a response is large, and is moved once, to where it goes.
            if let StateProject::Running { future, permit } = this.state.as_mut().project() {
                let mut polled = future.poll(cx);
                let held = match &mut polled {
                    Poll::Ready(Ok(response)) => permit.take().map(|permit| {
                        this.respond.admitted(response, permit.limiter());
                        Held::of(permit, response, *this.is_head, this.classify)
                    }),
                    _ => None,
                };
                return polled.map(|result| match result {
                    Ok(response) => Ok(response.map(|body| LimitBody::holding(body, held))),
                    Err(error) => Err(failed(error, permit.take(), this.classify, this.respond)),
                });
            }
            let next = match this.state.as_mut().project() {
                StateProject::Waiting { wait, call } => match ready!(wait.as_mut().poll(cx)) {
                    Ok(permit) => State::Starting {
                        call: call.take(),
                        permit: Some(permit),
                    },
                    Err(refused) => State::Refused { refused: Some(refused) },
                },
                StateProject::Starting { call, permit } => {
                    let waits = call.as_mut().expect(TAKEN);
                    if let Err(error) = ready!(waits.service.poll_ready(cx)) {
                        return Poll::Ready(Err(failed(error, permit.take(), this.classify, this.respond)));
                    }
                    let Call { mut service, request } = call.take().expect(TAKEN);
                    State::Running {
                        future: service.call(request),
                        permit: permit.take(),
                    }
                }
                StateProject::Failed { error, permit } => {
                    let error = error.take().expect(TAKEN);
                    return Poll::Ready(Err(failed(error, permit.take(), this.classify, this.respond)));
                }
                StateProject::Refused { refused } => {
                    let refused = refused.take().expect(TAKEN);
                    let response = this.respond.refused(refused)?;
                    return Poll::Ready(Ok(response.map(LimitBody::free)));
                }
                StateProject::Running { .. } => unreachable!("it was looked at above"),
            };
            this.state.set(next);
        }
    }
}

/// The service has no response, or was not even ready to give one.
fn failed<RB, L, C, R, E>(error: E, permit: Option<Permit<L>>, classify: &C, respond: &R) -> R::Error
where
    L: Limiter,
    C: Classify<E>,
    R: Respond<RB, E>,
{
    if let Some(permit) = permit {
        permit.finish(classify.error(&error));
    }
    respond.failed(error)
}
