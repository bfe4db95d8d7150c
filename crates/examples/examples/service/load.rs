//! Drives the service over real sockets, in the order of a real trace, and judges what comes back.

use crate::judge::{End, Promises, Tally, missed};
use crate::limits::{Failure, Limits};
use crate::trace::Hit;
use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Empty};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tollgate::Semaphore;

/// The part of the core that is in use at the rate that calibration looks for.
const USE: f64 = 0.8;
/// The most requests under way, each on a connection with two ends in this process. A request that must wait counts as late.
const UNDER_WAY: usize = 400;
/// How many clients do as they are told.
const HONEST: u32 = 16;
/// How often a second of calibration looks at what is in use, which takes a little less than the second.
const LOOKS: u32 = 140;

pub(crate) struct Driver {
    client: Client<HttpConnector, Empty<Bytes>>,
    address: SocketAddr,
    trace: Vec<Hit>,
    /// A request without an answer after this time has failed.
    patience: Duration,
    /// Where in the trace the next request is.
    next: AtomicUsize,
}

impl Driver {
    pub(crate) fn new(address: SocketAddr, trace: Vec<Hit>, patience: Duration) -> Arc<Self> {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .build(connector);
        Arc::new(Self {
            client,
            address,
            trace,
            patience,
            next: AtomicUsize::new(0),
        })
    }

    /// One request of `client`, as the proxy before the service would hand it on. The latency counts from `due`.
    async fn request(&self, client: u32, path: &str, due: Instant) -> End {
        let [_, a, b, c] = client.to_be_bytes();
        let request = Request::get(format!("http://{}{path}", self.address))
            .header("x-forwarded-for", format!("198.51.100.9, 10.{a}.{b}.{c}"))
            .body(Empty::new());
        let request = match request {
            Ok(request) => request,
            Err(error) => return End::Failed(error.to_string()),
        };
        let answer = async {
            let response = self
                .client
                .request(request)
                .await
                .map_err(|error| format!("{error:?}"))?;
            let (head, body) = response.into_parts();
            let body = body.collect().await.map_err(|error| error.to_string())?;
            Ok::<_, String>((head, body.to_bytes().len()))
        };
        let head = match timeout(self.patience, answer).await {
            Err(_) => return End::Failed("no answer in time".into()),
            Ok(Err(error)) => return End::Failed(error),
            Ok(Ok((head, _))) => head,
        };
        let retry_after = head.headers.get("retry-after").and_then(|value| value.to_str().ok());
        let cached = head.headers.contains_key("x-from");
        End::of(head.status.as_u16(), retry_after, cached, due.elapsed())
    }

    /// Sends at `rate` a second for `time`, whatever comes back, as far as the machine can: gaps are drawn from an exponential
    /// distribution.
    pub(crate) async fn run(self: &Arc<Self>, rate: f64, time: Duration) -> Tally {
        let (mut tally, mut tasks) = (Tally::default(), JoinSet::new());
        let (start, mut due) = (Instant::now(), Duration::ZERO);
        let mut random = 0x9e37_79b9_7f4a_7c15_u64;
        let under_way = Arc::new(Semaphore::new(UNDER_WAY));
        while due < time && start.elapsed() < time {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let uniform = ((random >> 11) as f64 + 1.0) / (1u64 << 53) as f64;
            due += Duration::from_secs_f64(-uniform.ln() / rate);
            let due = start + due;
            if due > Instant::now() {
                sleep_until(due).await;
            }
            let Ok(permit) = Arc::clone(&under_way).acquire_owned().await else {
                break;
            };
            let (driver, at) = (Arc::clone(self), self.next.fetch_add(1, Ordering::Relaxed));
            tasks.spawn(async move {
                let _permit = permit;
                let hit = &driver.trace[at % driver.trace.len()];
                driver.request(hit.client, &hit.path, due).await
            });
            while let Some(end) = tasks.try_join_next() {
                tally.add(end.unwrap_or_else(panicked));
            }
        }
        while let Some(end) = tasks.join_next().await {
            tally.add(end.unwrap_or_else(panicked));
        }
        tally
    }

    /// The rate at which the core is [`USE`] in use, found in ten seconds: each second the rate is corrected by what was
    /// used in it, at most to its half or double, and the last five are averaged.
    pub(crate) async fn calibrate(self: &Arc<Self>, limits: &Limits) -> f64 {
        let (mut rate, mut found) = (100.0, Vec::new());
        for _ in 0..10 {
            let sending = self.run(rate, Duration::from_secs(1));
            let watching = async {
                // The first tenth shows the rate before.
                sleep(Duration::from_millis(100)).await;
                let mut used = 0;
                for _ in 0..LOOKS {
                    sleep(Duration::from_millis(5)).await;
                    used += limits.counts.in_flight.load(Ordering::Relaxed);
                }
                used as f64 / f64::from(LOOKS) / limits.core_limit().max(1) as f64
            };
            let (_, used) = tokio::join!(sending, watching);
            rate *= (USE / used.max(0.01)).clamp(0.5, 2.0);
            found.push(rate);
        }
        let last = &found[found.len() - 5..];
        last.iter().sum::<f64>() / last.len() as f64
    }

    /// Clients that do as they are told: each asks until it is refused, keeps still as long as `Retry-After` says, and asks
    /// once more. Until `until`, and until a 429 of each has told how true it was.
    pub(crate) async fn honest(self: Arc<Self>, clients: u32, until: Instant) -> Promises {
        let mut tasks = JoinSet::new();
        for client in 0..clients {
            let driver = Arc::clone(&self);
            tasks.spawn(async move {
                // No client of the trace has so high a number.
                let client = 0x00c0_0000 + client;
                let ask = || driver.request(client, "/honest.gif", Instant::now());
                let mut seen = Promises::default();
                while Instant::now() < until || seen.kept + seen.broken + seen.failed == 0 {
                    match ask().await {
                        End::Refused { rate, retry } => {
                            sleep(Duration::from_secs(retry.unwrap_or(0))).await;
                            seen.add(rate, &ask().await);
                        }
                        End::Failed(_) => seen.failed += 1,
                        End::Admitted { .. } => {}
                    }
                }
                seen
            });
        }
        let all = tasks.join_all().await;
        all.into_iter().fold(Promises::default(), Promises::join)
    }
}

/// A task of the driver has panicked: the result of its request is unknown.
fn panicked(error: tokio::task::JoinError) -> End {
    End::Failed(error.to_string())
}

/// Calibrates, drives at `times` what was found for `time`, and reports. False when a bar is missed.
pub(crate) async fn report(driver: &Arc<Driver>, limits: &Limits, times: f64, time: Duration) -> Result<bool, Failure> {
    println!("calibrating: the rate at which the core is {:.0} % in use", USE * 100.0);
    let rate = driver.calibrate(limits).await;
    let mut quiet = driver.run(rate / 10.0, Duration::from_secs(5)).await;
    println!("found       {rate:8.0} requests a second");

    limits.counts.peak.store(0, Ordering::SeqCst);
    let until = Instant::now() + time;
    let honest = tokio::spawn(Arc::clone(driver).honest(HONEST, until));
    let mut tally = driver.run(rate * times, time).await;
    let promises = honest.await?;
    let (peak, limit) = (limits.counts.peak.load(Ordering::SeqCst), limits.core_limit());

    let share = |count| tally.share(count);
    println!(
        "driven at   {:8.0} requests a second for {} s",
        rate * times,
        time.as_secs()
    );
    println!("sent        {:8}", tally.all());
    println!(
        "admitted    {:8}  {:5.1} %, {} of them from the cache",
        tally.admitted(),
        share(tally.admitted()),
        tally.cached
    );
    println!("429         {:8}  {:5.1} %", tally.by_rate, share(tally.by_rate));
    println!(
        "503         {:8}  {:5.1} %",
        tally.by_capacity,
        share(tally.by_capacity)
    );
    println!(
        "failed      {:8}  {:5.3} %  (bar: under 0.2 %)",
        tally.failed,
        share(tally.failed)
    );
    if let Some(why) = &tally.first_failure {
        println!("            the first: {why}");
    }
    println!("in flight   {peak:8}  at most, of {limit}");
    println!("Retry-After {:8}  refusals without", tally.untold);
    println!(
        "  after 429 {:8}  came back then and were admitted; {} refused by the rate again, {} for want of a permit",
        promises.kept, promises.broken, promises.elsewhere
    );
    println!(
        "  after 503 {:8}  came back then and were admitted; {} were refused again",
        promises.let_in, promises.sent_away
    );
    let room = limits.room.stats();
    println!(
        "places      {:8}  given out, {} asked for again, {} missed, {} refused on return",
        room.booked, room.redeemed, room.missed, room.broken
    );
    let missed = missed(&tally, &promises, peak, limit);
    println!(
        "p50, p99    {:?}, {:?}; unloaded {:?}, {:?}",
        tally.quantile(0.5),
        tally.quantile(0.99),
        quiet.quantile(0.5),
        quiet.quantile(0.99)
    );
    for bar in &missed {
        println!("missed      {bar}");
    }
    println!(
        "{}",
        if missed.is_empty() {
            "all bars are met"
        } else {
            "a bar is missed"
        }
    );
    Ok(missed.is_empty())
}
