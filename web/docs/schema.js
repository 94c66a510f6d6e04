// Reads JSON Schema for people: names, types, rules and an example.
const DEEPEST = 4;

/** Follow references until there is a schema. */
export function resolve(api, schema) {
  let found = schema;
  while (found?.$ref) found = { ...api.components.schemas[found.$ref.split('/').pop()], ...found, $ref: undefined };
  return found ?? {};
}

/** Take away null: give the other alternative and whether null is allowed. */
function present(api, schema) {
  const whole = resolve(api, schema);
  const choices = whole.anyOf;
  if (!choices) return [whole, false];
  const rest = choices.filter((choice) => choice.type !== 'null');
  return [rest.length === 1 ? { ...resolve(api, rest[0]), description: whole.description } : { ...whole, anyOf: rest }, rest.length < choices.length];
}

/** Name a type in words. */
export function typeOf(api, schema) {
  const [found, nullable] = present(api, schema);
  const name = found.enum ? found.enum.map((value) => JSON.stringify(value)).join(' | ')
    : 'const' in found ? JSON.stringify(found.const)
    : found.anyOf ? found.anyOf.map((choice) => typeOf(api, choice)).join(' | ')
    : found.type === 'array' ? `list of ${found.items ? typeOf(api, found.items) : 'anything'}`
    : found.format === 'date-time' ? 'time'
    : Array.isArray(found.type) ? found.type.join(' | ')
    : found.type ?? 'anything';
  return nullable ? `${name} or null` : name;
}

function rulesOf(schema) {
  const rules = [];
  const said = (key, words) => { if (key in schema) rules.push(`${words} ${schema[key]}`); };
  said('minimum', 'from'); said('exclusiveMinimum', 'above'); said('maximum', 'to'); said('exclusiveMaximum', 'below');
  said('minLength', 'at least'); said('maxLength', 'at most');
  if ('pattern' in schema) rules.push(`like ${schema.pattern.replace(/^\^|\$$/g, '')}`);
  if ('default' in schema && schema.default !== null && JSON.stringify(schema.default).length < 60) rules.push(`default ${JSON.stringify(schema.default)}`);
  return rules.join(', ');
}

/** List the fields of an object, those of inner objects with dotted names. */
export function fieldsOf(api, schema, prefix = '', depth = 0) {
  const [whole] = present(api, schema);
  if (!whole.properties || depth > DEEPEST) return [];
  return Object.entries(whole.properties).flatMap(([key, value]) => {
    const [inner] = present(api, value);
    const items = inner.type === 'array' && inner.items ? inner.items : null;
    const name = `${prefix}${key}`;
    const field = { name, type: typeOf(api, value), rules: rulesOf({ ...inner, ...value }), text: value.description ?? (inner.properties ? '' : inner.description), required: (whole.required ?? []).includes(key) };
    return [field, ...fieldsOf(api, items ?? value, items ? `${name}[].` : `${name}.`, depth + 1)];
  });
}

/** Make up a value that fits. */
export function example(api, schema, depth = 0) {
  const [found] = present(api, schema);
  if (found.examples?.length) return found.examples[0];
  if ('default' in found && found.default !== null) return found.default;
  if (found.enum) return found.enum[0];
  if ('const' in found) return found.const;
  if (found.anyOf) return example(api, found.anyOf[0], depth);
  if (found.properties && depth <= DEEPEST) {
    const wanted = Object.keys(found.properties).filter((key) => (found.required ?? []).includes(key));
    return Object.fromEntries(wanted.map((key) => [key, example(api, found.properties[key], depth + 1)]));
  }
  return { string: 'text', integer: found.minimum ?? 1, number: found.minimum ?? 1, boolean: true, array: [] }[found.type] ?? {};
}
