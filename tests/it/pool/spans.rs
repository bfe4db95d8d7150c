//! A pool's task runs in the tracing span of its submitter.

use futures::StreamExt;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::task::yield_now;
use tollgate::WorkerPool;
use tollgate::fan_out::fan_out;
use tollgate::pool::TaskPool;
use tracing::{Event, Subscriber, info, info_span};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;

const LONG: Duration = Duration::from_secs(60);

/// Notes in which span each event comes.
#[derive(Clone, Default)]
struct Notes(Arc<Mutex<Vec<Option<&'static str>>>>);

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Notes {
    fn on_event(&self, _: &Event<'_>, cx: Context<'_, S>) {
        let span = cx.lookup_current().map(|span| span.name());
        self.0.lock().unwrap().push(span);
    }
}

impl Notes {
    fn taken(&self) -> Vec<Option<&'static str>> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

async fn task() {
    info!("first poll");
    yield_now().await;
    info!("second poll");
}

/// Given tasks of each kind, large and small, with a handle and without, then each runs in the span in which it was submitted, and none
/// in that of another.
#[test]
fn a_task_runs_in_the_span_of_its_submitter() {
    let notes = Notes::default();
    let subscriber = tracing_subscriber::registry().with(notes.clone());
    let subscriber = tracing::Dispatch::new(subscriber);
    let _default = tracing::dispatcher::set_default(&subscriber);
    let on_start = {
        let subscriber = subscriber.clone();
        move || std::mem::forget(tracing::dispatcher::set_default(&subscriber))
    };
    let pool = WorkerPool::builder().workers(1).on_start(on_start).build().unwrap();
    let span = info_span!("request");
    let words = [0usize; 9];
    span.in_scope(|| {
        pool.execute(|| info!("small")).unwrap();
        pool.execute(move || info!("large {words:?}")).unwrap();
        assert!(pool.execute_all([|| info!("one of many")]).is_empty());
        pool.run(|| info!("with a handle")).unwrap();
    });
    pool.run(|| info!("outside")).unwrap();
    assert!(pool.shutdown(LONG).is_clean());
    assert_eq!(
        notes.taken(),
        [Some("request"), Some("request"), Some("request"), Some("request"), None]
    );

    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let pool = TaskPool::builder(1).build().unwrap();
        let inside = span.in_scope(|| pool.try_submit(task()).unwrap());
        let outside = pool.try_submit(task()).unwrap();
        inside.await.unwrap();
        outside.await.unwrap();
        assert_eq!(notes.taken(), [Some("request"), Some("request"), None, None]);

        let results = span.in_scope(|| fan_out(0..2, 1).map(|_| task()));
        assert_eq!(results.count().await, 2);
        assert_eq!(notes.taken(), [Some("request"); 4]);
    });
}

/// Notes the spans that are closed.
struct Closed(Arc<Mutex<Vec<&'static str>>>);

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Closed {
    fn on_close(&self, id: tracing::Id, cx: Context<'_, S>) {
        let name = cx.span(&id).map(|span| span.name());
        self.0.lock().unwrap().extend(name);
    }
}

/// Given a queued task that is cancelled, then its span is closed at once, although its entry stays in the queue.
#[test]
fn a_cancelled_task_keeps_no_span() {
    let closed = Arc::default();
    let subscriber = tracing_subscriber::registry().with(Closed(Arc::clone(&closed)));
    let _default = tracing::subscriber::set_default(subscriber);
    let worker = Mutex::new(None);
    let pool = WorkerPool::builder().workers(1).spawn_with(move |never| {
        *worker.lock().unwrap() = Some(never);
        Ok(())
    });
    let pool = pool.build().unwrap();
    let handle = info_span!("on a thread").in_scope(|| pool.submit(|| ()).unwrap());
    assert!(handle.cancel());
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let tasks = runtime.block_on(async { TaskPool::builder(1).build().unwrap() });
    let awaited = info_span!("async").in_scope(|| tasks.try_submit(async {}).unwrap());
    assert!(awaited.cancel());
    assert_eq!(*closed.lock().unwrap(), ["on a thread", "async"]);
}
