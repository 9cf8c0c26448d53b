//! Calls to hostd, as the operator.

use crate::context::Context;
use berth_api::{CallError, Caller, Client, Reply, Request, Status};
use berth_types::{Code, Refusal};

/// Makes one call and shows its progress.
pub fn call(context: &Context, request: Request) -> Result<Reply, Refusal> {
    crate::runtime()?.block_on(async {
        let client = Client::new(context.config.service.api_socket());
        let called = client.call_with(Caller::Operator, request, |text| say!("{text}")).await;
        called.map(|(reply, _)| reply).map_err(|error| explain(&error))
    })
}

/// An answer to another question than the one that was asked.
pub fn unexpected() -> Refusal {
    Refusal::new(
        Code::Failed,
        "hostd gave an answer of another kind",
        "restart berth: two versions are mixed",
    )
}

fn explain(error: &CallError) -> Refusal {
    match error {
        CallError::Refused(refusal) => refusal.clone(),
        CallError::Unavailable { path, source } => match source {
            berth_api::ConnectionError::Io(io) if io.kind() == std::io::ErrorKind::PermissionDenied => {
                Refusal::new(
                    Code::NotAllowed,
                    format!("{} is closed to you", path.display()),
                    "run it with sudo",
                )
            }
            _ => {
                let message = format!("hostd does not answer on {}", path.display());
                Refusal::new(Code::Unavailable, message, "start it with 'berth up'")
            }
        },
    }
}

/// hostd's state, if it answers.
pub async fn status(client: &Client) -> Option<Status> {
    match client.call(Caller::Operator, Request::Status).await {
        Ok((Reply::Status(status), _)) => Some(status),
        _ => None,
    }
}

/// hostd's word, if it answers.
pub async fn ready(client: &Client) -> Option<String> {
    match client.call(Caller::Operator, Request::Ready).await {
        Ok((Reply::Ready(word), _)) => Some(word),
        _ => None,
    }
}
