//! A server of rmcp's with tasks of the extension, in this process. Each tool but `result` becomes a task for a client
//! with the extension.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use rmcp::ErrorData;
use rmcp::handler::server::ServerHandler;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, CancelTaskParams, ContentBlock, CreateTaskResult,
    ErrorCode, GetTaskParams, GetTaskResult, InputRequest, ListToolsResult, PaginatedRequestParams, ServerCapabilities,
    ServerConfig, Tool, UpdateTaskParams,
};
use rmcp::service::{RequestContext, RoleServer};
use rmcp::task_manager::{TaskContext, TaskExit, TaskManager, TaskOptions};
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::{StreamableHttpServerConfig, StreamableHttpService};
use serde_json::{Map, Value, json};
use support::pair_client::SLOW;
use tokio::net::TcpListener;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

const TOOLS: [&str; 6] = ["result", "tool_error", "rpc_error", "slow", "ask", "wait"];

/// The server's counters.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    pub(crate) tasks: AtomicUsize,
    pub(crate) runs: AtomicUsize,
    pub(crate) cancelled: AtomicUsize,
}

#[derive(Clone, Default)]
struct Handler {
    tasks: TaskManager,
    ledger: Arc<Ledger>,
}

/// The server at work. Dropping it ends it.
pub(crate) struct RustServer {
    pub(crate) address: SocketAddr,
    pub(crate) ledger: Arc<Ledger>,
    _stop: DropGuard,
}

impl RustServer {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let handler = Handler::default();
        let (ledger, stop) = (Arc::clone(&handler.ledger), CancellationToken::new());
        let config = StreamableHttpServerConfig::default().with_cancellation_token(stop.child_token());
        let factory = move || Ok(handler.clone());
        let service = StreamableHttpService::new(factory, Arc::new(LocalSessionManager::default()), config);
        let (tracker, ending) = (TaskTracker::new(), stop.clone());
        let connections = tracker.clone();
        tracker.spawn(stop.clone().run_until_cancelled_owned(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let service = service.clone();
                let answering = service_fn(move |request| {
                    let service = service.clone();
                    async move { Ok::<_, Infallible>(service.handle(request).await) }
                });
                connections.spawn(ending.clone().run_until_cancelled_owned(async move {
                    // How a connection ends says nothing.
                    let _ = auto::Builder::new(TokioExecutor::new())
                        .serve_connection(TokioIo::new(stream), answering)
                        .await;
                }));
            }
        }));
        Self { address, ledger, _stop: stop.drop_guard() }
    }
}

fn text(text: &str) -> Vec<ContentBlock> {
    vec![ContentBlock::text(text)]
}

impl Handler {
    /// Runs a tool. `context` is the one of its task, if it is one; `gone` ends when the client disconnects or cancels.
    async fn run(
        self,
        tool: String,
        context: Option<TaskContext>,
        gone: CancellationToken,
    ) -> Result<CallToolResult, TaskExit> {
        self.ledger.runs.fetch_add(1, Ordering::SeqCst);
        let cancelled = async {
            match &context {
                Some(task) => task.cancelled().await,
                None => gone.cancelled().await,
            }
        };
        match tool.as_str() {
            "tool_error" => Ok(CallToolResult::error(text("it broke"))),
            "rpc_error" => Err(ErrorData::new(ErrorCode(4711), "bad luck", None).into()),
            "slow" => {
                tokio::time::sleep(SLOW).await;
                Ok(CallToolResult::success(text("done")))
            }
            "ask" => {
                let Some(task) = &context else { return Ok(CallToolResult::error(text("only as a task"))) };
                let schema =
                    json!({"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]});
                let params = json!({"mode": "form", "message": "the first name?", "requestedSchema": schema});
                let asked = json!({"method": "elicitation/create", "params": params});
                let request: InputRequest = serde_json::from_value(asked).unwrap();
                let said = task.request_input("first", request).await?;
                let (action, name) = (said["action"].as_str(), said["content"]["name"].as_str());
                let words: Vec<&str> = [action, name].into_iter().flatten().collect();
                Ok(CallToolResult::success(text(&words.join(" "))))
            }
            "wait" => {
                cancelled.await;
                self.ledger.cancelled.fetch_add(1, Ordering::SeqCst);
                Err(TaskExit::Cancelled)
            }
            _ => Ok(CallToolResult::success(text("done"))),
        }
    }
}

impl ServerHandler for Handler {
    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let (tool, gone) = (request.name.to_string(), context.ct.clone());
        let takes_tasks = context.client_capabilities().is_some_and(|declared| declared.supports_tasks());
        let handler = self.clone();
        if takes_tasks && tool != "result" {
            self.ledger.tasks.fetch_add(1, Ordering::SeqCst);
            let options = TaskOptions::new().with_poll_interval_ms(100);
            // The request ends with the handle: only the task itself can be called off.
            let task = self.tasks.spawn(options, move |task| Box::pin(handler.run(tool, Some(task), gone)));
            return Ok(CreateTaskResult::new(task).into());
        }
        match handler.run(tool, None, gone).await {
            Ok(result) => Ok(result.into()),
            Err(TaskExit::Error(error)) => Err(error),
            Err(TaskExit::Cancelled) => Err(ErrorData::internal_error("called off", None)),
        }
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let schema: Map<String, Value> = serde_json::from_value(json!({"type": "object"})).unwrap();
        let tool = |name| Tool::new(name, "A tool.", Arc::new(schema.clone()));
        Ok(ListToolsResult::with_all_items(TOOLS.map(tool).to_vec()))
    }

    async fn get_task(
        &self,
        request: GetTaskParams,
        _: RequestContext<RoleServer>,
    ) -> Result<GetTaskResult, ErrorData> {
        Ok(GetTaskResult::new(self.tasks.get_task(&request.task_id)?))
    }

    async fn update_task(&self, request: UpdateTaskParams, _: RequestContext<RoleServer>) -> Result<(), ErrorData> {
        self.tasks.update_task(&request.task_id, request.input_responses)
    }

    async fn cancel_task(&self, request: CancelTaskParams, _: RequestContext<RoleServer>) -> Result<(), ErrorData> {
        self.tasks.cancel_task(&request.task_id)
    }

    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().enable_tasks().build())
    }
}
