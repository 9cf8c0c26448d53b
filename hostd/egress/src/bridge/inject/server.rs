//! The server that a guest talks to.

use super::{
    frames::Frank,
    guard::Guard,
    head::MAX_HEADERS,
    session::Session,
    windows::{READ, SEND, Windows},
};
use crate::bridge::{replay::Replay, sni::Http};
use hyper::{server::conn, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use std::{convert::Infallible, sync::Arc, time::Duration};
use tokio_rustls::server::TlsStream;

/// Of a request's head, and of silence between two requests.
const IDLE: Duration = Duration::from_secs(120);
/// Streams that a guest opened and reset before they were even looked at.
const RESETS: usize = 32;
const HEADER_TABLE: u32 = 4096;

pub async fn serve(session: Arc<Session>, stream: TlsStream<Replay>) {
    let limits = session.machine.host.shared().limits;
    let watched = session.clone();
    let service = service_fn(move |request| {
        let session = session.clone();
        async move { Ok::<_, Infallible>(session.exchange(request).await) }
    });
    let served = async {
        match watched.http {
            Http::One => {
                let limit = limits.header_bytes as usize;
                let io = TokioIo::new(Guard::new(stream, limit, watched.watch.clone()));
                conn::http1::Builder::new()
                    .timer(TokioTimer::new())
                    .header_read_timeout(IDLE)
                    .preserve_header_case(true)
                    .auto_date_header(false)
                    .max_headers(MAX_HEADERS)
                    .max_header_size(limit)
                    .max_buf_size(READ)
                    .serve_connection(io, service)
                    .with_upgrades()
                    .await
            }
            Http::Two => {
                let windows = Windows::of(&watched.machine);
                conn::http2::Builder::new(TokioExecutor::new())
                    .timer(TokioTimer::new())
                    .auto_date_header(false)
                    .max_concurrent_streams(windows.streams)
                    .max_header_list_size(limits.header_bytes)
                    .header_table_size(HEADER_TABLE)
                    .max_pending_accept_reset_streams(RESETS)
                    .max_local_error_reset_streams(RESETS)
                    .initial_stream_window_size(windows.stream)
                    .initial_connection_window_size(windows.connection)
                    .max_send_buf_size(SEND)
                    .keep_alive_interval(IDLE)
                    .serve_connection(TokioIo::new(Frank::new(stream, watched.clone())), service)
                    .await
            }
        }
    };
    tokio::select! {
        served = served => if let Some(fault) = watched.watch.unsaid() {
            watched.report_fault(fault);
        } else if let Err(error) = served {
            tracing::debug!(%error, machine = %watched.machine.id, "a guest's HTTP connection broke");
        },
        () = watched.no_longer_allowed() => watched.report_cut(),
    }
}
