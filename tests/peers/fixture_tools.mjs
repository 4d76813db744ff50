// The tools of the conformance fixture. A tool is `[description, run(arguments, context), inputSchema?]`.

import { setTimeout as delay } from 'node:timers/promises';
import { McpError } from '@modelcontextprotocol/sdk/types.js';
import { PNG, WAV, text } from './fixture_content.mjs';

const NO_ARGUMENTS = { type: 'object', properties: {}, additionalProperties: false };
const object = (properties, required = Object.keys(properties)) => ({ type: 'object', properties, required });
const string = (description) => ({ type: 'string', description });

const say = (value) => ({ content: [text(value)] });
const refuse = (value) => ({ ...say(value), isError: true });
const image = { type: 'image', data: PNG, mimeType: 'image/png' };
const form = (message, properties, required) => ({ message, requestedSchema: object(properties, required) });
const question = (prompt, maxTokens) => ({ messages: [{ role: 'user', content: text(prompt) }], maxTokens });
const showElicited = ({ action, content = {} }) =>
  say(`Elicitation completed: action=${action}, content=${JSON.stringify(content)}`);

/** Runs `ask`; what the client refuses becomes a tool error. */
const asking = (ask) => async (args, context) => {
  try {
    return await ask(args, context);
  } catch (error) {
    context.signal.throwIfAborted();
    return refuse(`The client did not answer: ${error.message}`);
  }
};

const askName = (context, message = 'What is your name?') =>
  context.elicit(form(message, { name: { type: 'string' } }));

const DEFAULTS = {
  name: { type: 'string', default: 'John Doe' },
  age: { type: 'integer', default: 30 },
  score: { type: 'number', default: 95.5 },
  status: { type: 'string', enum: ['active', 'inactive', 'pending'], default: 'active' },
  verified: { type: 'boolean', default: true },
};

const titled = (kind) => ['First', 'Second', 'Third'].map((word, index) => ({
  const: `value${index + 1}`, title: `${word} ${kind}`,
}));
const ENUMS = {
  untitledSingle: { type: 'string', enum: ['option1', 'option2', 'option3'] },
  titledSingle: { type: 'string', oneOf: titled('Option') },
  legacyEnum: { type: 'string', enum: ['opt1', 'opt2', 'opt3'], enumNames: ['Option One', 'Option Two', 'Option Three'] },
  untitledMulti: { type: 'array', items: { type: 'string', enum: ['option1', 'option2', 'option3'] } },
  titledMulti: { type: 'array', items: { anyOf: titled('Choice') } },
};

const CONTACT_SCHEMA = {
  $schema: 'https://json-schema.org/draft/2020-12/schema',
  type: 'object',
  $defs: {
    address: {
      $anchor: 'addressDef',
      type: 'object',
      properties: { street: { type: 'string' }, city: { type: 'string' } },
    },
  },
  properties: {
    name: { type: 'string' },
    address: { $ref: '#/$defs/address' },
    contactMethod: { type: 'string', enum: ['phone', 'email'] },
    phone: { type: 'string' },
    email: { type: 'string' },
  },
  allOf: [{ anyOf: [{ required: ['phone'] }, { required: ['email'] }] }],
  if: { properties: { contactMethod: { const: 'phone' } }, required: ['contactMethod'] },
  then: { required: ['phone'] },
  else: { required: ['email'] },
  additionalProperties: false,
};

const content = {
  test_simple_text: ['Returns a text', () => say('This is a simple text response for testing.')],
  test_image_content: ['Returns an image', () => ({ content: [image] })],
  test_audio_content: ['Returns audio', () => ({ content: [{ type: 'audio', data: WAV, mimeType: 'audio/wav' }] })],
  test_embedded_resource: ['Returns an embedded resource', () => ({
    content: [{
      type: 'resource',
      resource: { uri: 'test://embedded-resource', mimeType: 'text/plain', text: 'This is an embedded resource content.' },
    }],
  })],
  test_multiple_content_types: ['Returns a text, an image and a resource', () => ({
    content: [text('Multiple content types test:'), image, {
      type: 'resource',
      resource: {
        uri: 'test://mixed-content-resource', mimeType: 'application/json',
        text: JSON.stringify({ test: 'data', value: 123 }),
      },
    }],
  })],
  test_error_handling: ['Always fails', () => refuse('This tool intentionally returns an error for testing')],
  json_schema_2020_12_tool: ['Says how a contact is reached', ({ name = 'The contact', contactMethod, phone, email }) => {
    const address = contactMethod === 'phone' ? phone : email ?? phone;
    return say(`${name} is reached at ${address}`);
  }, CONTACT_SCHEMA],
  test_x_mcp_header: ['Says which region it was called for', ({ region = 'none' }) => say(`Region: ${region}`),
    object({ region: { type: 'string', 'x-mcp-header': 'Region' } }, [])],
};

const streaming = {
  test_tool_with_logging: ['Logs three messages', async (_, { log, signal }) => {
    await log('Tool execution started');
    await delay(50, undefined, { signal });
    await log('Tool processing data');
    await delay(50, undefined, { signal });
    await log('Tool execution completed');
    return say('Three messages were logged.');
  }],
  test_logging_tool: ['Logs one message', async (_, { log }) => {
    await log('A message while the tool runs');
    return say('One message was logged.');
  }],
  test_tool_with_progress: ['Reports progress three times', async (_, { notify, progressToken, signal }) => {
    for (const progress of [0, 50, 100]) {
      if (progress > 0) await delay(50, undefined, { signal });
      if (progressToken !== undefined) {
        await notify('notifications/progress', { progressToken, progress, total: 100 });
      }
    }
    return say('Progress is complete.');
  }],
  test_reconnection: ['Closes its stream before it answers', async (_, { closeStream, signal }) => {
    await delay(100, undefined, { signal });
    closeStream();
    await delay(100, undefined, { signal });
    return say('The answer came after the stream was closed.');
  }],
  test_trigger_tool_change: ['Switches test_dynamic_tool on or off', async (_, { toggle }) =>
    say(`test_dynamic_tool is ${(await toggle('dynamicTool')) ? 'on' : 'off'}`)],
  test_trigger_prompt_change: ['Switches test_dynamic_prompt on or off', async (_, { toggle }) =>
    say(`test_dynamic_prompt is ${(await toggle('dynamicPrompt')) ? 'on' : 'off'}`)],
};

const questions = {
  test_sampling: ['Asks the client\'s model', asking(async ({ prompt }, { sample }) => {
    const { content: answer } = await sample(question(prompt, 100));
    return say(`LLM response: ${answer.text}`);
  }), object({ prompt: string('What to ask') })],
  test_elicitation: ['Asks the user', asking(async ({ message }, { elicit }) => {
    const { action, content: answer } = await elicit(form(message, {
      username: string("User's response"), email: string("User's email address"),
    }));
    return say(`User response: action: ${action}, content: ${JSON.stringify(answer ?? {})}`);
  }), object({ message: string('What to ask') })],
  test_elicitation_sep1034_defaults: ['Asks with defaults for every primitive type', asking(async (_, { elicit }) =>
    showElicited(await elicit(form('Please check these values', DEFAULTS, []))))],
  test_elicitation_sep1330_enums: ['Asks with every kind of choice', asking(async (_, { elicit }) =>
    showElicited(await elicit(form('Please choose', ENUMS, []))))],
  test_streaming_elicitation: ['Asks the user to go on', asking(async (_, { elicit }) =>
    showElicited(await elicit(form('Go on?', { confirm: { type: 'boolean' } }))))],
  test_missing_capability: ['Cannot work without the client\'s model', asking(async (_, { sample }) => {
    const { content: answer } = await sample(question('Say yes', 10));
    return say(`The model said: ${answer.text}`);
  })],
  test_input_required_result_elicitation: ['Greets the user by name', asking(async (_, context) => {
    const { action, content: answer } = await askName(context);
    return say(action === 'accept' ? `Hello, ${answer.name}!` : 'Hello, whoever you are!');
  })],
  test_input_required_result_sampling: ['Asks the model a question', asking(async (_, { sample }) =>
    ({ content: [(await sample(question('What is the capital of France?', 100))).content] }))],
  test_input_required_result_list_roots: ['Counts the client\'s roots', asking(async (_, { roots }) => {
    const { roots: found } = await roots();
    return say(`${found.length} root(s): ${found.map((root) => root.uri).join(', ')}`);
  })],
  test_input_required_result_request_state: ['Remembers its call across a question', asking(async (_, { elicit }) => {
    const { action } = await elicit(form('Please confirm', { ok: { type: 'boolean' } }));
    return say(`state-ok: ${action}`);
  })],
  test_input_required_result_multiple_inputs: ['Asks for name, greeting and roots at once', asking(async (_, context) => {
    const [name, greeting, { roots }] = await Promise.all([
      askName(context), context.sample(question('Generate a greeting', 50)), context.roots(),
    ]);
    return say(`${greeting.content.text} ${name.content?.name ?? name.action}, ${roots.length} root(s)`);
  })],
  test_input_required_result_multi_round: ['Asks twice', asking(async (_, context) => {
    const name = await askName(context, 'Step 1: What is your name?');
    const color = await context.elicit(form('Step 2: What is your favorite color?', { color: { type: 'string' } }));
    return say(`${name.content?.name ?? name.action} likes ${color.content?.color ?? color.action}`);
  })],
  test_input_required_result_tampered_state: ['Asks for a confirmation', asking(async (_, { elicit }) => {
    const { action } = await elicit(form('Please confirm', { ok: { type: 'boolean' } }));
    return say(`Confirmed: ${action}`);
  })],
  test_input_required_result_capabilities: ['Asks only what the client declared', asking(async (_, context) => {
    const answers = [];
    if (context.clientCapabilities.sampling) answers.push((await context.sample(question('Say hello', 10))).content.text);
    if (context.clientCapabilities.elicitation) answers.push((await askName(context)).action);
    return say(answers.length > 0 ? answers.join(', ') : 'There was nothing to ask.');
  })],
};

const jobs = {
  greet: ['Greets someone', ({ name }) => say(`Hello, ${name}!`), object({ name: string('Who to greet') })],
  slow_compute: ['Works for some seconds', async ({ seconds, label = 'job' }, { signal }) => {
    await delay(seconds * 1000, undefined, { signal });
    return say(`${label} computed for ${seconds} s`);
  }, object({ seconds: { type: 'number', minimum: 0, maximum: 600 }, label: string('Shown in the answer') }, ['seconds'])],
  failing_job: ['Works for a second, then fails', async (_, { signal }) => {
    await delay(1000, undefined, { signal });
    return refuse('The job failed.');
  }],
  protocol_error_job: ['Breaks off with a JSON-RPC error', async (_, { signal }) => {
    await delay(100, undefined, { signal });
    throw new McpError(-32603, 'The job broke down', { job: 'protocol_error_job' });
  }],
  confirm_delete: ['Deletes a file once the user agrees', asking(async ({ filename }, { elicit }) => {
    const { action, content: answer } = await elicit(form(`Delete ${filename}?`, { confirm: { type: 'boolean' } }));
    return say(action === 'accept' && answer?.confirm ? `Deleted ${filename}` : `Kept ${filename}`);
  }), object({ filename: string('The file to delete') })],
  multi_input: ['Asks for a name and a confirmation at once', asking(async (_, context) => {
    const [name, confirmation] = await Promise.all([
      askName(context), context.elicit(form('Are you sure?', { confirm: { type: 'boolean' } })),
    ]);
    return say(`name: ${name.content?.name ?? name.action}, sure: ${confirmation.content?.confirm ?? confirmation.action}`);
  })],
  test_tool_with_task: ['Asks for a name, then works for half a second', asking(async (_, context) => {
    const { action, content: answer } = await askName(context);
    await delay(500, undefined, { signal: context.signal });
    return say(`Worked for ${answer?.name ?? action}`);
  })],
};

const tools = { ...content, ...streaming, ...questions, ...jobs };
const dynamicTool = ['Present while test_trigger_tool_change has switched it on', () => say('This tool comes and goes.')];

const visibleTools = (shown) => (shown.dynamicTool ? { ...tools, test_dynamic_tool: dynamicTool } : tools);

export const listTools = (shown) =>
  Object.entries(visibleTools(shown)).map(([name, [description, , inputSchema = NO_ARGUMENTS]]) => ({
    name, description, inputSchema,
  }));

export const findTool = (name, shown) =>
  Object.hasOwn(visibleTools(shown), name) ? visibleTools(shown)[name][1] : undefined;
