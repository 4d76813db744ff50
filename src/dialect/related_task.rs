//! Writes a task's messages to session clients between requests: questions, progress and log. Each names the task in
//! `_meta`, by the member and the id of its dialect (L25-27, L25-31, D86-17).

use std::sync::Arc;

use bytes::Bytes;

use super::faults::unusable_answer;
use crate::task::{Answer, ChosenId, InputKey, Question, TaskId};
use crate::wire::envelope::Response;
use crate::wire::meta::{DRAFT_RELATED_TASK, META, RELATED_TASK};
use crate::wire::object::{ObjectEdit, ObjectWriter};
use crate::wire::{JsonPieces, Object, Payload, RequestId, envelope, method};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RelatedTask {
    member: &'static str,
    id: Arc<str>,
    parent: Option<TaskId>,
}

impl RelatedTask {
    /// By the id that the client chose, if it did; else by the task's own.
    pub fn of(id: TaskId, chosen: Option<&ChosenId>) -> Self {
        match chosen {
            Some(chosen) => Self::chosen(&chosen.text),
            None => Self { member: RELATED_TASK, id: Arc::from(id.to_string()), parent: None },
        }
    }

    pub fn chosen(text: &Arc<str>) -> Self {
        Self { member: DRAFT_RELATED_TASK, id: Arc::clone(text), parent: None }
    }

    /// Adds the task's parent (SUB-09), for clients that know subtasks.
    #[must_use]
    pub fn under(self, parent: Option<TaskId>) -> Self {
        Self { parent, ..self }
    }

    /// The `_meta` of a message without other members in it, such as the call's progress (L25-46).
    pub fn meta(&self) -> Payload {
        self.beside(None)
    }

    /// Adds the related task to an object's `_meta` (L25-27); other members are unchanged.
    pub fn on(&self, object: &Payload) -> Payload {
        self.on_shared(object, None).whole()
    }

    /// As [`Self::on`], in pieces, without copying large ones, and without this member.
    pub fn on_shared(&self, object: &Payload, removed: Option<&str>) -> JsonPieces {
        let Some(object) = Object::of(object) else { return object.clone().into() };
        let edit = object.edit().set(META, self.beside(object.get_object(META).as_ref()));
        removed.into_iter().fold(edit, ObjectEdit::remove).finish_pieces()
    }

    fn beside(&self, meta: Option<&Object>) -> Payload {
        let parent = self.parent.as_ref().map(ToString::to_string);
        let related = ObjectWriter::new().text("taskId", &self.id).optional_text("parentTaskId", parent.as_deref());
        let related = related.finish();
        match meta {
            Some(meta) => meta.edit().set(self.member, related).finish(),
            None => ObjectWriter::new().member(self.member, &related).finish(),
        }
    }

    /// An upstream's question as a request (L25-14, D86-11). An elicitation by URL gets the required id (T-49).
    pub fn question(&self, key: InputKey, question: &Question, id: &RequestId) -> Option<Bytes> {
        let request = Object::of(&question.request)?;
        let name = request.get_string("method")?;
        let Some(params) = request.get_object("params") else {
            let params = ObjectWriter::new().member(META, &self.meta()).finish();
            return Some(envelope::request(id, &name, Some(&params)));
        };
        // Clients are asked for answers, never for tasks (T-59).
        let edit = params.edit().remove("task").set(META, self.beside(params.get_object(META).as_ref()));
        let by_address = name == method::ELICIT && params.get_str("mode").is_some_and(|mode| mode == "url");
        let edit = if by_address && !params.contains("elicitationId") {
            edit.set("elicitationId", Payload::of(&format!("{}-{}", self.id, key.0)))
        } else {
            edit
        };
        Some(envelope::request(id, &name, Some(&edit.finish())))
    }

    pub fn withdrawn(&self, id: &RequestId) -> Bytes {
        let params = ObjectWriter::new()
            .member("requestId", &id.payload())
            .text("reason", "the question was withdrawn")
            .member(META, &self.meta())
            .finish();
        envelope::notification(method::CANCELLED, Some(&params))
    }

    pub fn log(&self, params: &Payload) -> Bytes {
        envelope::notification(method::LOG_MESSAGE, Some(&self.on(params)))
    }

    /// A client's answer to a question, without members of this hop.
    pub fn answer(&self, response: Response) -> Answer {
        match (response.outcome, response.result) {
            (Err(error), _) => Answer::Error(error),
            (Ok(_), Some(result)) => {
                Answer::Result(result.edit().remove_within(META, &[self.member]).finish().detached())
            }
            (Ok(_), None) => Answer::Error(unusable_answer()),
        }
    }
}
