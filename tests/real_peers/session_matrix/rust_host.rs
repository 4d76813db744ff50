//! The host that rmcp needs: answers to the server's questions, and a record of its notifications.

use std::time::Duration;

use rmcp::ClientHandler;
use rmcp::ErrorData;
use rmcp::model::{
    ClientCapabilities, ClientConfig, CreateMessageRequestParams, CreateMessageResult, ElicitRequestParams,
    ElicitResult, ElicitationAction, Implementation, ListRootsResult, LoggingMessageNotificationParam,
    ProgressNotificationParam, ResourceUpdatedNotificationParam, Root, SamplingMessage,
};
use rmcp::service::{NotificationContext, RequestContext, RoleClient};
use serde_json::Value;
use tokio::sync::watch;
use tokio::time::timeout;

/// How long something that the server says may take.
pub(crate) const NOTICE_MAX: Duration = Duration::from_secs(20);

/// A notification: the method, and the part of its params that the case needs.
type Notice = (&'static str, Value);

const ELICITATION: &str = "elicitation/create";

/// One client's program. Its clones are the same one.
#[derive(Clone, Debug)]
pub(crate) struct Host {
    answer: Value,
    /// The methods of all questions.
    asked: watch::Sender<Vec<&'static str>>,
    heard: watch::Sender<Vec<Notice>>,
}

impl Host {
    /// Answers every question with `answer`.
    pub(crate) fn new(answer: &Value) -> Self {
        Self { answer: answer.clone(), asked: watch::Sender::new(Vec::new()), heard: watch::Sender::new(Vec::new()) }
    }

    /// How many questions the server asked.
    pub(crate) fn asked(&self) -> usize {
        self.asked.borrow().len()
    }

    /// How many of them ask the person.
    pub(crate) fn elicited(&self) -> usize {
        self.asked.borrow().iter().filter(|method| **method == ELICITATION).count()
    }

    /// Whether the server asks something within [`NOTICE_MAX`].
    pub(crate) async fn is_asked(&self) -> bool {
        let mut asked = self.asked.subscribe();
        timeout(NOTICE_MAX, asked.wait_for(|methods| !methods.is_empty())).await.is_ok()
    }

    /// The notifications of `method`, as soon as they are enough, or after `limit`.
    pub(crate) async fn heard(
        &self,
        method: &str,
        is_enough: impl Fn(&[Value]) -> bool,
        limit: Duration,
    ) -> Vec<Value> {
        let mut heard = self.heard.subscribe();
        let of_method = |all: &[Notice]| {
            all.iter().filter(|notice| notice.0 == method).map(|notice| notice.1.clone()).collect::<Vec<_>>()
        };
        let _ = timeout(limit, heard.wait_for(|all| is_enough(&of_method(all)))).await;
        of_method(&self.heard.borrow())
    }

    fn hear(&self, method: &'static str, what: Value) {
        self.heard.send_modify(|all| all.push((method, what)));
    }

    fn ask(&self, method: &'static str) {
        self.asked.send_modify(|methods| methods.push(method));
    }

    fn text(&self, name: &str) -> &str {
        self.answer.get(name).and_then(Value::as_str).unwrap_or_default()
    }
}

impl ClientHandler for Host {
    async fn create_elicitation(
        &self,
        _: ElicitRequestParams,
        _: RequestContext<RoleClient>,
    ) -> Result<ElicitResult, ErrorData> {
        self.ask(ELICITATION);
        Ok(ElicitResult::new(ElicitationAction::Accept).with_content(self.answer.clone()))
    }

    async fn create_message(
        &self,
        _: CreateMessageRequestParams,
        _: RequestContext<RoleClient>,
    ) -> Result<CreateMessageResult, ErrorData> {
        self.ask("sampling/createMessage");
        Ok(CreateMessageResult::new(SamplingMessage::assistant_text(self.text("text")), self.text("model").to_owned()))
    }

    async fn list_roots(&self, _: RequestContext<RoleClient>) -> Result<ListRootsResult, ErrorData> {
        self.ask("roots/list");
        Ok(ListRootsResult::new(vec![Root::new(self.text("uri")).with_name(self.text("name"))]))
    }

    async fn on_progress(&self, params: ProgressNotificationParam, _: NotificationContext<RoleClient>) {
        self.hear("notifications/progress", params.progress.into());
    }

    async fn on_logging_message(&self, params: LoggingMessageNotificationParam, _: NotificationContext<RoleClient>) {
        self.hear("notifications/message", serde_json::to_value(params.level).unwrap());
    }

    async fn on_resource_updated(&self, params: ResourceUpdatedNotificationParam, _: NotificationContext<RoleClient>) {
        self.hear("notifications/resources/updated", params.uri.into());
    }

    async fn on_resource_list_changed(&self, _: NotificationContext<RoleClient>) {
        self.hear("notifications/resources/list_changed", Value::Null);
    }

    async fn on_tool_list_changed(&self, _: NotificationContext<RoleClient>) {
        self.hear("notifications/tools/list_changed", Value::Null);
    }

    fn get_info(&self) -> ClientConfig {
        let capabilities = ClientCapabilities::builder().enable_elicitation().enable_sampling().enable_roots().build();
        ClientConfig::new(capabilities, Implementation::from_build_env())
    }
}
