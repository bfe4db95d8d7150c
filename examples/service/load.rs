//! Drives the service over real sockets, in the order of a real trace, and judges what comes back.

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

/// Whoever has waited so long for an answer has none.
const PATIENCE: Duration = Duration::from_secs(5);
/// The part of the core that is in use at the rate that calibration looks for.
const USE: f64 = 0.8;
/// How often a second of calibration looks at what is in use, which takes a little less than the second.
const LOOKS: u32 = 140;

pub(crate) struct Driver {
    client: Client<HttpConnector, Empty<Bytes>>,
    address: SocketAddr,
    trace: Vec<Hit>,
    /// Where in the trace the next request is.
    next: AtomicUsize,
}

/// How one request ended.
pub(crate) enum End {
    Admitted {
        after: Duration,
        cached: bool,
    },
    /// By 429 or 503, with what `Retry-After` says.
    Refused {
        rate: bool,
        retry: Option<u64>,
    },
    Failed(String),
}

/// What came back in all.
#[derive(Default)]
pub(crate) struct Tally {
    /// In microseconds.
    latencies: Vec<u64>,
    pub(crate) cached: u64,
    pub(crate) by_rate: u64,
    pub(crate) by_capacity: u64,
    /// Refusals without a `Retry-After` of a second or more.
    pub(crate) untold: u64,
    pub(crate) failed: u64,
    pub(crate) first_failure: Option<String>,
}

impl Tally {
    fn add(&mut self, end: End) {
        match end {
            End::Admitted { after, cached } => {
                self.latencies.push(after.as_micros() as u64);
                self.cached += u64::from(cached);
            }
            End::Refused { rate, retry } => {
                *if rate { &mut self.by_rate } else { &mut self.by_capacity } += 1;
                self.untold += u64::from(retry.is_none_or(|seconds| seconds == 0));
            }
            End::Failed(why) => {
                self.failed += 1;
                self.first_failure.get_or_insert(why);
            }
        }
    }

    pub(crate) fn admitted(&self) -> u64 {
        self.latencies.len() as u64
    }

    pub(crate) fn all(&self) -> u64 {
        self.admitted() + self.by_rate + self.by_capacity + self.failed
    }

    /// The latency that this share of the admitted did not exceed.
    pub(crate) fn quantile(&mut self, share: f64) -> Duration {
        self.latencies.sort_unstable();
        let rank = (self.latencies.len() as f64 * share) as usize;
        let micros = self.latencies.get(rank.min(self.latencies.len().saturating_sub(1)));
        Duration::from_micros(micros.copied().unwrap_or(0))
    }
}

impl Driver {
    pub(crate) fn new(address: SocketAddr, trace: Vec<Hit>) -> Arc<Self> {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .build(connector);
        Arc::new(Self {
            client,
            address,
            trace,
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
        let head = match timeout(PATIENCE, answer).await {
            Err(_) => return End::Failed("no answer in time".into()),
            Ok(Err(error)) => return End::Failed(error),
            Ok(Ok((head, _))) => head,
        };
        match head.status.as_u16() {
            200 => End::Admitted {
                after: due.elapsed(),
                cached: head.headers.contains_key("x-from"),
            },
            status @ (429 | 503) => {
                let retry = head.headers.get("retry-after").and_then(|value| value.to_str().ok());
                End::Refused {
                    rate: status == 429,
                    retry: retry.and_then(|seconds| seconds.parse().ok()),
                }
            }
            status => End::Failed(format!("status {status} of {path}")),
        }
    }

    /// Sends at `rate` a second for `time`, whatever comes back: gaps are drawn from an exponential distribution.
    pub(crate) async fn run(self: &Arc<Self>, rate: f64, time: Duration) -> Tally {
        let (mut tally, mut tasks) = (Tally::default(), JoinSet::new());
        let (start, mut due) = (Instant::now(), Duration::ZERO);
        let mut random = 0x9e37_79b9_7f4a_7c15_u64;
        while due < time {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let uniform = ((random >> 11) as f64 + 1.0) / (1u64 << 53) as f64;
            due += Duration::from_secs_f64(-uniform.ln() / rate);
            let due = start + due;
            if due > Instant::now() {
                sleep_until(due).await;
            }
            let (driver, at) = (Arc::clone(self), self.next.fetch_add(1, Ordering::Relaxed));
            tasks.spawn(async move {
                let hit = &driver.trace[at % driver.trace.len()];
                driver.request(hit.client, &hit.path, due).await
            });
            while let Some(Ok(end)) = tasks.try_join_next() {
                tally.add(end);
            }
        }
        while let Some(Ok(end)) = tasks.join_next().await {
            tally.add(end);
        }
        tally
    }

    /// The rate at which the core is [`USE`] in use, found in ten seconds: each second the rate is corrected by what was
    /// used in it, and the last five are averaged.
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
            found.push(rate * USE / used.max(0.01));
            rate *= (USE / used.max(0.01)).clamp(0.5, 2.0);
        }
        let last = &found[found.len() - 5..];
        last.iter().sum::<f64>() / last.len() as f64
    }

    /// Clients that do as they are told: each asks until it is refused for its rate, keeps still as long as `Retry-After`
    /// says, and asks once more. Returns how often that was, and how often the promise was not kept.
    pub(crate) async fn honest(self: Arc<Self>, clients: u32, until: Instant) -> (u64, u64) {
        let mut tasks = JoinSet::new();
        for client in 0..clients {
            let driver = Arc::clone(&self);
            tasks.spawn(async move {
                // No client of the trace has so high a number.
                let (client, mut kept, mut broken) = (0x00c0_0000 + client, 0, 0);
                while Instant::now() < until {
                    let retry = match driver.request(client, "/honest.gif", Instant::now()).await {
                        End::Refused { rate: true, retry } => retry,
                        _ => {
                            sleep(Duration::from_millis(20)).await;
                            continue;
                        }
                    };
                    sleep(Duration::from_secs(retry.unwrap_or(0))).await;
                    match driver.request(client, "/honest.gif", Instant::now()).await {
                        End::Refused { rate: true, .. } => broken += 1,
                        _ => kept += 1,
                    }
                }
                (kept, broken)
            });
        }
        tasks
            .join_all()
            .await
            .into_iter()
            .fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
    }
}

/// Calibrates, drives at `times` what was found for `time`, and reports. False when a bar is missed.
pub(crate) async fn report(driver: &Arc<Driver>, limits: &Limits, times: f64, time: Duration) -> Result<bool, Failure> {
    println!("calibrating: the rate at which the core is {:.0} % in use", USE * 100.0);
    let rate = driver.calibrate(limits).await;
    let mut quiet = driver.run(rate / 10.0, Duration::from_secs(5)).await;
    println!("found       {rate:8.0} requests a second");

    limits.counts.peak.store(0, Ordering::SeqCst);
    let until = Instant::now() + time;
    let honest = tokio::spawn(Arc::clone(driver).honest(4, until));
    let mut tally = driver.run(rate * times, time).await;
    let (kept, broken) = honest.await?;
    let (peak, limit) = (limits.counts.peak.load(Ordering::SeqCst), limits.core_limit());

    let all = tally.all().max(1) as f64;
    let share = |count: u64| 100.0 * count as f64 / all;
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
    println!(
        "Retry-After {:8}  refusals without; {kept} promises kept, {broken} broken",
        tally.untold
    );
    println!(
        "p50, p99    {:?}, {:?}; unloaded {:?}, {:?}",
        tally.quantile(0.5),
        tally.quantile(0.99),
        quiet.quantile(0.5),
        quiet.quantile(0.99)
    );

    let good = share(tally.failed) < 0.2 && peak <= limit && tally.untold == 0 && broken == 0 && kept > 0;
    println!("{}", if good { "all bars are met" } else { "a bar is missed" });
    Ok(good)
}
