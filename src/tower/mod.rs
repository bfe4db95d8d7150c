//! Limits for services of [tower](https://docs.rs/tower): one layer for any limiter or policy, on the side of the server or of
//! the client, for HTTP and gRPC.
//!
//! | you want to | use |
//! |---|---|
//! | refuse at once what a limiter does not admit | [`LimitLayer::new`] |
//! | let requests wait in a policy's line | [`LimitLayer::waiting`] |
//! | tell who is refused when to come back, and let it in then | [`LimitLayer::waiting_room`] |
//! | limit each client by itself | [`LimitLayer::keyed`], [`LimitLayer::keyed_waiting`] |
//! | let requests weigh differently | [`LimitLayer::price`] |
//! | feed a breaker or an adaptive limit, in a server | nothing: [`StatusCodes`] does; [`GrpcCodes`] for gRPC |
//! | the same, before an upstream | [`LimitLayer::classify`] with [`ClientStatusCodes`] or [`ClientGrpcCodes`] |
//! | say by yourself how requests ended | [`LimitLayer::classify_status`], [`Classify`] |
//! | answer refusals with a response | [`LimitLayer::refuse_with`]; with headers and problem details: the module `axum` |
//!
//! The permit of a request lives as long as the body of its response: [`LimitBody`].

mod body;
mod classify;
mod future;
mod gate;
mod head;
mod layer;
mod refused;
mod respond;
mod room;

pub use body::LimitBody;
pub use classify::{ByStatus, Classify, ClientGrpcCodes, ClientStatusCodes, GrpcCodes, StatusCodes, Verdict};
pub use future::LimitFuture;
#[cfg(any(feature = "metrics", feature = "tracing"))]
pub(crate) use gate::KEY;
pub use gate::{
    Admission, AtOnce, Exempting, ExtractKey, Gate, InLine, InLinePerKey, OneCall, PerKey, Price, Priced, Waited,
};
pub use head::Head;
pub use layer::{Limit, LimitLayer};
pub use refused::{Refused, status_of};
pub use respond::{AsError, AsResponse, LimitError, Respond};
pub use room::Recalling;
