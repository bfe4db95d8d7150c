//! Crawls 2,000 pages of five local sites whose limits are hidden and change, and one of which is down.
//!
//! Each site has a policy: a rate that finds itself by the site's refusals, a bound on requests in flight, and a breaker. All
//! sites share one rate. The policy of a page is chosen by its site, so a page that waits for a slow site holds no slot. A page
//! that fails goes back into the queue after a back-off, as long as the retry budget lasts.
//!
//! ```text
//! cargo run -p tollgate-examples --example crawler
//! ```
//! Exit code 1: a page of a site that is up is missing, or the site that is down was asked too often.

mod site;

use bytes::Bytes;
use futures::StreamExt;
use futures::channel::mpsc;
use http::StatusCode;
use http_body_util::Empty;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use site::Site;
use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tollgate::fan_out::fan_out_stream;
use tollgate::{Ask, BoxLimiter, LimiterExt, Outcome, Policy, PolicyError, Quota, Semaphore, TokenBucket};
use tollgate_resilience::CircuitBreaker;
use tollgate_resilience::adaptive::{Adaptive, Cubic};
use tollgate_resilience::retry::Backoff;
use tollgate_resilience::shed::RetryBudget;

const PAGES: usize = 2_000;
const ATTEMPTS: usize = 6;

#[derive(Clone, Copy)]
struct Page {
    site: usize,
    number: usize,
    /// Attempts so far.
    attempts: usize,
}

type Rate = Arc<Adaptive<TokenBucket>>;

/// The limits of one site, and the rate among them.
fn limits(all_sites: &Arc<TokenBucket>) -> Result<(Policy<BoxLimiter>, Rate), Box<dyn Error>> {
    let rate = Adaptive::builder(TokenBucket::new(Quota::per_second(100).burst(5)))
        .law(Cubic::new().scale(50.0))
        .bounds(10, 2_000)
        .window(Duration::from_millis(200), 5)
        .build()?;
    let rate = Arc::new(rate);
    // A circuit opens after five failures in a row, and its pages are refused at once.
    let breaker = CircuitBreaker::builder().consecutive_failures(5).build()?;
    let policy: Result<_, PolicyError> = Policy::builder()
        .limit(breaker.at_once().named("site is down"))
        .limit(Arc::clone(&rate).named("rate of the site"))
        .limit(Arc::clone(all_sites).named("rate of all sites"))
        .limit(Semaphore::new(16).named("in flight"))
        .boxed()
        .build();
    Ok((policy?, rate))
}

/// How the permit of a response ends: the rate learns from refusals, the breaker from failures.
fn classify(status: StatusCode) -> Outcome {
    match status {
        StatusCode::OK => Outcome::Success,
        StatusCode::TOO_MANY_REQUESTS => Outcome::Overload,
        _ => Outcome::Failure,
    }
}

#[tokio::main]
async fn main() -> Result<ExitCode, Box<dyn Error>> {
    let hidden = [
        ("a", Some(300)),
        ("b", Some(400)),
        ("c", Some(200)),
        ("d", Some(300)),
        ("e", None),
    ];
    let mut sites = Vec::new();
    for (name, per_second) in hidden {
        sites.push(Site::start(name, per_second).await?);
    }
    let (b, c) = (Arc::clone(&sites[1]), Arc::clone(&sites[2]));
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(800)).await;
        b.allow(200);
        c.allow(400);
    });

    let all_sites = Arc::new(TokenBucket::new(Quota::per_second(1_500)));
    let (mut policies, mut rates) = (Vec::new(), Vec::new());
    for _ in &sites {
        let (policy, rate) = limits(&all_sites)?;
        policies.push(policy);
        rates.push(rate);
    }
    let bars = MultiProgress::new();
    let style = ProgressStyle::with_template("{prefix} {wide_bar} {pos}/{len} {msg}")?;
    let bars: Vec<ProgressBar> = (sites.iter())
        .map(|site| {
            let bar = ProgressBar::new((PAGES / sites.len()) as u64).with_style(style.clone());
            bars.add(bar.with_prefix(site.name))
        })
        .collect();

    // The queue of pages. A page that is to be repeated goes back into it.
    let (queue, pages) = mpsc::unbounded();
    for number in 0..PAGES {
        let (site, attempts) = (number % sites.len(), 0);
        queue.unbounded_send(Page { site, number, attempts })?;
    }
    let client: Client<HttpConnector, Empty<Bytes>> = Client::builder(TokioExecutor::new()).build_http();
    let addresses: Vec<_> = sites.iter().map(|site| site.address.clone()).collect();
    let mut fetched = fan_out_stream(pages, 64)
        .admit_each(PAGES, move |page: &Page| (policies[page.site].clone(), Ask::one()))
        .map_classified(
            move |page| {
                let uri = format!("http://{}/{}", addresses[page.site], page.number).parse();
                let client = client.clone();
                async move {
                    let response = client.get(uri.expect("an address and a number")).await;
                    (
                        page,
                        response.map_or(StatusCode::BAD_GATEWAY, |response| response.status()),
                    )
                }
            },
            |(_, status)| classify(*status),
        );

    let budget = RetryBudget::new(0.1, 100)?;
    let backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(1))?;
    let (mut read, mut refused, mut given_up, mut left) = (vec![0; sites.len()], 0, vec![0; sites.len()], PAGES);
    while left > 0 {
        let Some(result) = fetched.next().await else { break };
        let (page, status) = match result {
            Ok(page) => page,
            // By the breaker: the site is down.
            Err(_) => {
                (refused, left) = (refused + 1, left - 1);
                continue;
            }
        };
        let at = page.site;
        if page.attempts == 0 {
            budget.deposit();
        }
        bars[at].set_message(format!("{}/s", rates[at].limit()));
        if status == StatusCode::OK {
            (read[at], left) = (read[at] + 1, left - 1);
            bars[at].inc(1);
        } else if page.attempts + 1 < ATTEMPTS && budget.try_admit(1).is_ok() {
            let delay = backoff
                .delays(page.number as u64)
                .nth(page.attempts)
                .unwrap_or_default();
            let (queue, attempts) = (queue.clone(), page.attempts + 1);
            tokio::spawn(async move {
                tokio::time::sleep(delay).await;
                queue.unbounded_send(Page { attempts, ..page })
            });
        } else {
            (given_up[at], left) = (given_up[at] + 1, left - 1);
        }
    }
    bars.iter().for_each(ProgressBar::abandon);

    println!("site  pages read  given up  requests  rate found  drops");
    for (at, site) in sites.iter().enumerate() {
        let (stats, requests) = (rates[at].stats(), site.requests.load(Relaxed));
        let (name, read, given_up) = (site.name, read[at], given_up[at]);
        println!(
            "{name:4} {read:11} {given_up:9} {requests:9} {:9}/s {:6}",
            stats.limit, stats.drops
        );
    }
    println!("{refused} pages were not asked for: their site is down");
    let up = read[..4].iter().all(|read| *read == PAGES / sites.len());
    let spared = sites[4].requests.load(Relaxed) < 100;
    Ok(if up && spared {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(1)
    })
}
