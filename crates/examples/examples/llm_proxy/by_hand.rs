//! The limits of `limits.rs` by governor, tokio's semaphore, tower and recloser, as far as they go.
//!
//! | what they cannot do | why |
//! |---|---|
//! | take all or nothing | a refusal by a busy model or an open circuit has charged the rates and the budget: governor takes nothing back |
//! | settle | the estimate of the tokens stays charged, whatever the answer took |
//! | change a limit in place | governor's quota is fixed: a new limiter starts full |
//! | serve paid keys first | tokio's semaphore is first come, first served |
//! | say why, and when to come back | a time-out says that it is one; an open circuit has no instant |
//! | begin a day at midnight of a time zone | by the seconds since 1970 it begins at midnight UTC |

use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};
use recloser::{AsyncRecloser, Recloser};
use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::Semaphore;
use tower::ServiceBuilder;
use tower::layer::util::{Identity, Stack};
use tower::limit::GlobalConcurrencyLimitLayer;
use tower::load_shed::LoadShedLayer;

/// What one tier of keys may use.
#[derive(Clone, Copy)]
pub(crate) struct Quotas {
    pub(crate) requests_per_minute: NonZeroU32,
    pub(crate) request_burst: NonZeroU32,
    pub(crate) tokens_per_minute: NonZeroU32,
    pub(crate) tokens_per_day: u64,
}

pub(crate) struct ByHand {
    requests: DefaultKeyedRateLimiter<String>,
    tokens: DefaultKeyedRateLimiter<String>,
    /// The day, and the tokens that were used in it.
    budgets: Mutex<HashMap<String, (u64, u64)>>,
    tokens_per_day: u64,
    models: HashMap<String, Arc<Semaphore>>,
    breaker: AsyncRecloser,
}

#[derive(Debug, PartialEq)]
pub(crate) enum Refused {
    Requests(Duration),
    Tokens(Duration),
    Budget,
    /// There is no more to say.
    TimedOut,
    Open,
    Failed,
}

impl ByHand {
    pub(crate) fn new(quotas: Quotas, models: &[(&str, usize)]) -> Self {
        let per_minute = |rate, burst| Quota::per_minute(rate).allow_burst(burst);
        let breaker = Recloser::custom()
            .error_rate(0.5)
            .closed_len(10)
            .half_open_len(2)
            .open_wait(Duration::from_secs(10))
            .build();
        Self {
            requests: RateLimiter::keyed(per_minute(quotas.requests_per_minute, quotas.request_burst)),
            tokens: RateLimiter::keyed(per_minute(quotas.tokens_per_minute, quotas.tokens_per_minute)),
            budgets: Mutex::default(),
            tokens_per_day: quotas.tokens_per_day,
            models: models
                .iter()
                .map(|(name, n)| ((*name).to_owned(), Arc::new(Semaphore::new(*n))))
                .collect(),
            breaker: AsyncRecloser::from(breaker),
        }
    }

    /// In front of the whole server.
    pub(crate) fn server() -> ServiceBuilder<Stack<GlobalConcurrencyLimitLayer, Stack<LoadShedLayer, Identity>>> {
        let in_flight = GlobalConcurrencyLimitLayer::new(1_000);
        ServiceBuilder::new().layer(LoadShedLayer::new()).layer(in_flight)
    }

    pub(crate) async fn call(
        &self,
        key: &str,
        model: &str,
        tokens: u32,
        upstream: impl Future<Output = Result<u64, ()>>,
    ) -> Result<u64, Refused> {
        let key = key.to_owned();
        let now = governor::clock::Clock::now(&governor::clock::DefaultClock::default());
        if let Err(not_yet) = self.requests.check_key(&key) {
            return Err(Refused::Requests(not_yet.wait_time_from(now)));
        }
        let units = NonZeroU32::new(tokens).unwrap_or(NonZeroU32::MIN);
        match self.tokens.check_key_n(&key, units) {
            Ok(Ok(())) => {}
            Ok(Err(not_yet)) => return Err(Refused::Tokens(not_yet.wait_time_from(now))),
            Err(_) => return Err(Refused::Tokens(Duration::MAX)),
        }
        self.spend(key, u64::from(tokens), SystemTime::now())?;
        let slots = Arc::clone(&self.models[model]);
        let slot = tokio::time::timeout(Duration::from_secs(5), slots.acquire_owned()).await;
        let Ok(Ok(_slot)) = slot else {
            return Err(Refused::TimedOut);
        };
        match self.breaker.call(upstream).await {
            Ok(used) => Ok(used),
            Err(recloser::Error::Rejected) => Err(Refused::Open),
            Err(recloser::Error::Inner(())) => Err(Refused::Failed),
        }
    }

    pub(crate) fn spend(&self, key: String, tokens: u64, now: SystemTime) -> Result<(), Refused> {
        let since = now.duration_since(UNIX_EPOCH).unwrap_or_default();
        let today = since.as_secs() / 86_400;
        let mut budgets = self.budgets.lock().unwrap_or_else(PoisonError::into_inner);
        let (day, used) = budgets.entry(key).or_default();
        if *day != today {
            (*day, *used) = (today, 0);
        }
        if *used + tokens > self.tokens_per_day {
            return Err(Refused::Budget);
        }
        *used += tokens;
        Ok(())
    }
}
