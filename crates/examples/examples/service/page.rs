//! The page of the operator: one file, fed by server-sent events.

use crate::limits::Limits;
use axum::Router;
use axum::extract::State;
use axum::response::sse::{Event, Sse};
use axum::response::{Html, IntoResponse};
use axum::routing::get;
use futures::{Stream, StreamExt};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

/// How often the page is told.
const EVERY: Duration = Duration::from_millis(250);

pub(crate) fn router(limits: Arc<Limits>) -> Router {
    Router::new()
        .route("/limits", get(async || Html(include_str!("page.html"))))
        .route("/limits/events", get(events))
        .with_state(limits)
}

async fn events(State(limits): State<Arc<Limits>>) -> impl IntoResponse {
    Sse::new(snapshots(limits))
}

fn snapshots(limits: Arc<Limits>) -> impl Stream<Item = Result<Event, Infallible>> {
    let ticks = tokio_stream::wrappers::IntervalStream::new(tokio::time::interval(EVERY));
    ticks.map(move |_| Ok(Event::default().data(limits.snapshot().to_string())))
}
