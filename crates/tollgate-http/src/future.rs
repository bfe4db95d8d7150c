//! The future of a limited request.

use super::body::{Held, LimitBody};
use super::charge::{Charge, Charged};
use super::classify::Classify;
use super::gate::Waited;
use super::refused::Refused;
use super::respond::Respond;
use http::{Request, Response};
use http_body::Body;
use pin_project_lite::pin_project;
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};
use tollgate::Limiter;
use tower_service::Service;

/// A response whose body holds a permit.
type Limited<B, L, C, E> = Response<LimitBody<B, L, C, E>>;

pin_project! {
    /// Waits for admission, if necessary, and then for the service.
    ///
    /// # Cancel safety
    /// Dropping it leaves the queue, or drops the work of the service and releases the permit. Nothing is lost.
    ///
    /// ```
    /// # use http::{Request, Response};
    /// # use http_body_util::Empty;
    /// # use std::convert::Infallible;
    /// # use std::sync::Arc;
    /// # use tollgate::Semaphore;
    /// # use tollgate_http::LimitLayer;
    /// # use tower::{Layer, Service, service_fn};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let slots = Arc::new(Semaphore::new(1));
    /// let mut service = LimitLayer::new(Arc::clone(&slots)).layer(service_fn(async |_: Request<()>| {
    ///     Ok::<_, Infallible>(Response::new(Empty::<&[u8]>::new()))
    /// }));
    /// let future = service.call(Request::new(()));
    /// drop(future); // The client has left: the slot is free again.
    /// assert_eq!(slots.in_use(), 0);
    /// assert!(service.call(Request::new(())).await.is_ok());
    /// # Ok(())
    /// # }
    /// ```
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
        Waiting {
            wait: Pin<Box<dyn Future<Output = Waited<L>> + Send>>,
            charge: Option<Charge>,
            call: Option<Call<S, Q>>,
        },
        Starting { call: Option<Call<S, Q>>, permit: Option<Charged<L>> },
        Running { #[pin] future: F, permit: Option<Charged<L>> },
        Refused { refused: Option<Refused<L>> },
        Failed { error: Option<E>, permit: Option<Charged<L>> },
    }
}

/// A request, and its own clone of the service, which is to become ready for it.
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

    /// The future of a request that has been admitted, or is not limited.
    ///
    /// A service that is ready at once, as nearly all are, is called at once, so that its request is not moved again. This first
    /// look registers no waker; the next one is at the first poll of the future.
    #[inline]
    pub(super) fn starting(call: Call<S, Request<B>>, permit: Option<Charged<L>>, classify: C, respond: R) -> Self {
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
        charge: Option<Charge>,
        call: Call<S, Request<B>>,
        classify: C,
        respond: R,
    ) -> Self {
        let is_head = call.request.method() == http::Method::HEAD;
        let call = Some(call);
        Self::new(State::Waiting { wait, charge, call }, classify, respond, is_head)
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
            // First and apart: a response is large, and is moved only once.
            if let StateProject::Running { future, permit } = this.state.as_mut().project() {
                let mut polled = future.poll(cx);
                let held = match &mut polled {
                    Poll::Ready(Ok(response)) => permit.take().map(|mut permit| {
                        permit.settle();
                        if let Some(limiter) = permit.limiter() {
                            this.respond.admitted(response, limiter);
                        }
                        Held::of(permit, response, *this.is_head, this.classify)
                    }),
                    _ => None,
                };
                if let (Poll::Pending, Some(permit)) = (&polled, permit.as_mut()) {
                    permit.settle();
                }
                return polled.map(|result| match result {
                    Ok(response) => Ok(response.map(|body| LimitBody::holding(body, held))),
                    Err(error) => Err(failed(error, permit.take(), this.classify, this.respond)),
                });
            }
            let next = match this.state.as_mut().project() {
                StateProject::Waiting { wait, charge, call } => match ready!(wait.as_mut().poll(cx)) {
                    Ok(permit) => State::Starting {
                        call: call.take(),
                        permit: Some(Charged::new(permit, charge.take())),
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

/// The service has failed, or could not become ready.
fn failed<RB, L, C, R, E>(error: E, permit: Option<Charged<L>>, classify: &C, respond: &R) -> R::Error
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
